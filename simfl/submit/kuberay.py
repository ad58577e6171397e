"""Kubernetes with the KubeRay operator: a RayJob that brings its own cluster, and a ConfigMap with the files.

The manifest holds names alone: variables come from a Secret, the cluster's token is made by the operator. What the run
leaves goes to a PersistentVolumeClaim that all pods mount, or to a URL.
"""

from __future__ import annotations

import base64
import json
import re
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from simfl.errors import ConfigError
from simfl.submit.request import ELSEWHERE, Request, lasting_out

HERE = "/simfl"  # where the files lie in every pod
MOST_BYTES = 900_000  # of a ConfigMap, which holds 1 MiB
TICK = 5.0  # seconds between two looks
OVER = {"SUCCEEDED": 0, "FAILED": 1, "STOPPED": 130}
GRACE = 120  # seconds that a pod has for its last commit


@dataclass(frozen=True)
class KubeRay:
    """A RayJob and its pods."""

    image: str | None = None  # has simfl and its dependencies; needed
    nodes: int = 1  # worker pods
    cpus: int = 1  # of each pod
    gpus: int | None = None  # of each worker pod
    memory: str = "8Gi"  # of each pod
    claim: str | None = None  # NAME=/path: a PersistentVolumeClaim and where it is mounted
    secret: str = "simfl"  # the Secret that holds the variables, each under its own name
    token: bool = True  # whether Ray's API asks for a token; operators from 1.5.1 on can

    def shown(self, request: Request) -> str:
        """The manifest as JSON, which every reader of YAML reads."""
        return json.dumps(manifest(request, self), indent=1)

    def submit(self, request: Request, say: Callable[[str], None], follow: bool) -> int:
        """Hand the manifest to kubectl."""
        made = manifest(request, self)
        _kubectl(["create", "-f", "-"], json.dumps(made))
        name = made["items"][1]["metadata"]["name"]
        say(f"RayJob {name} is submitted; to end it: kubectl delete rayjob {name}")
        return _follow(name, say) if follow else 0


def manifest(request: Request, cluster: KubeRay) -> dict[str, Any]:
    """A List of the ConfigMap and the RayJob, as `kubectl create` takes it."""
    if cluster.image is None:
        raise ConfigError("--image: needed with --to kuberay: an image that has simfl and what it depends on")
    lasting_out(request, "kuberay")
    _check_out(request, cluster)
    name = _name(request.name)
    return {"apiVersion": "v1", "kind": "List", "items": [_files(request, name), _job(request, cluster, name)]}


def _check_out(request: Request, cluster: KubeRay) -> None:
    """ConfigError if what the run leaves would go with its pods."""
    if ELSEWHERE.match(request.out):
        return
    if cluster.claim is None:
        raise ConfigError(f"--out: {request.out} would go with the pods; give --claim NAME=/path, or a URL as --out")
    mount = _claim(cluster.claim)[1]
    if not f"{request.out}/".startswith(f"{mount.rstrip('/')}/"):
        raise ConfigError(f"--out: {request.out} is not in {mount}, where the claim is mounted")


def _claim(text: str) -> tuple[str, str]:
    name, separator, path = text.partition("=")
    if not (name and separator and path.startswith("/")):
        raise ConfigError(f"--claim: {text!r}; give the name of a claim and a path, such as results=/shared")
    return name, path


def _name(text: str) -> str:
    """A name that Kubernetes takes: the RayJob's pods are called after it, so it is short."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:40].strip("-") or "simfl"


def _files(request: Request, name: str) -> dict[str, Any]:
    parcel = request.parcel
    if parcel.bytes > MOST_BYTES:
        raise ConfigError(
            f"{parcel.folder}: {parcel.bytes / 1e6:.1f} MB; at most {MOST_BYTES / 1e6:.1f} MB go along to Kubernetes;"
            " leave files out with --exclude, or put them into the image"
        )
    content = {
        _key(number): base64.b64encode((parcel.folder / file).read_bytes()).decode()
        for number, file in enumerate(parcel.files)
    }
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"{name}-files"}, "binaryData": content}


def _key(number: int) -> str:
    return f"file-{number:04d}"  # keys have no slashes


def _job(request: Request, cluster: KubeRay, name: str) -> dict[str, Any]:
    extra = {"authOptions": {"mode": "token"}} if cluster.token else {}
    head = {"rayStartParams": {"num-cpus": "0"}, "template": _pod(request, cluster, name, "ray-head", gpus=None)}
    workers = {
        "groupName": "workers",
        "replicas": cluster.nodes,
        "minReplicas": cluster.nodes,
        "maxReplicas": cluster.nodes,
        "rayStartParams": {},
        "template": _pod(request, cluster, name, "ray-worker", cluster.gpus),
    }
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {"name": name, "labels": {"app.kubernetes.io/managed-by": "simfl"}},
        "spec": {
            "entrypoint": f"cd {HERE} && {request.line}",
            "shutdownAfterJobFinishes": True,
            "ttlSecondsAfterFinished": 600,
            "backoffLimit": 0,
            "rayClusterSpec": {**extra, "headGroupSpec": head, "workerGroupSpecs": [workers]},
        },
    }


def _pod(request: Request, cluster: KubeRay, name: str, container: str, gpus: int | None) -> dict[str, Any]:
    limits = {"cpu": str(cluster.cpus), "memory": cluster.memory}
    if gpus:
        limits["nvidia.com/gpu"] = str(gpus)
    items = [{"key": _key(number), "path": file} for number, file in enumerate(request.parcel.files)]
    volumes: list[dict[str, Any]] = [{"name": "files", "configMap": {"name": f"{name}-files", "items": items}}]
    mounts: list[dict[str, Any]] = [{"name": "files", "mountPath": HERE, "readOnly": True}]
    if cluster.claim is not None:
        claim, path = _claim(cluster.claim)
        volumes.append({"name": "shared", "persistentVolumeClaim": {"claimName": claim}})
        mounts.append({"name": "shared", "mountPath": path})
    variables = [
        {"name": one, "valueFrom": {"secretKeyRef": {"name": cluster.secret, "key": one}}}
        for one in request.environment
    ]
    return {
        "spec": {
            "terminationGracePeriodSeconds": GRACE,
            "containers": [
                {
                    "name": container,
                    "image": cluster.image,
                    "env": variables,
                    "resources": {"limits": limits, "requests": dict(limits)},
                    "volumeMounts": mounts,
                }
            ],
            "volumes": volumes,
        }
    }


def _follow(name: str, say: Callable[[str], None]) -> int:
    """The log of the operator's submitter, once it is there, and how the job ended."""
    shown = False
    try:
        while (status := _status(name)) not in OVER:
            if not shown:  # until the operator has started what submits, there is nothing to follow
                words = ["kubectl", "logs", "--follow", f"job/{name}"]
                shown = subprocess.run(words, stderr=subprocess.DEVNULL).returncode == 0
            time.sleep(TICK)
    except KeyboardInterrupt:
        say(f"RayJob {name} goes on; to end it: kubectl delete rayjob {name}")
        return 130
    say(f"RayJob {name}: {status.lower()}")
    return OVER[status]


def _status(name: str) -> str:
    return _kubectl(["get", "rayjob", name, "-o", "jsonpath={.status.jobStatus}"]).strip()


def _kubectl(words: list[str], text: str | None = None) -> str:
    try:
        done = subprocess.run(["kubectl", *words], input=text, capture_output=True, text=True)
    except FileNotFoundError:
        raise ConfigError("--to kuberay: there is no kubectl here; --dry-run prints what to create") from None
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["no reason given"]
        raise ConfigError(f"--to kuberay: kubectl refuses: {said[-1]}")
    return done.stdout
