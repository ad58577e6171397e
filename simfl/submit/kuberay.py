"""Kubernetes with the KubeRay operator: a RayJob with its own cluster, and a ConfigMap with the files.

The manifest contains no secrets: variables come from a Secret, and the operator creates the token of the cluster.
Results are written to a PersistentVolumeClaim that all pods mount, or to a URL.
"""

from __future__ import annotations

import base64
import json
import re
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass

from simfl.errors import ConfigError
from simfl.runs.folder import JsonObject
from simfl.submit.request import URL, Request, check_out

FILES = "/simfl"  # folder of the files in every pod
MAX_BYTES = 900_000  # a ConfigMap is limited to 1,048,576 bytes, base64 included
POLL_SECONDS = 5.0
EXIT_CODES = {"SUCCEEDED": 0, "FAILED": 1, "STOPPED": 130}
GRACE_SECONDS = 120  # time that a pod has for its last checkpoint


@dataclass(frozen=True)
class KubeRay:
    """Options of a RayJob and its pods."""

    image: str | None = None  # image with simfl and its dependencies; required
    nodes: int = 1  # worker pods
    cpus: int = 1  # per pod
    gpus: int | None = None  # per worker pod
    memory: str = "8Gi"  # per pod
    claim: str | None = None  # NAME=/path: PersistentVolumeClaim and its mount path
    secret: str = "simfl"  # Secret with the environment variables, each under its name
    token: bool = True  # require a token for Ray; needs operator 1.5.1 or newer

    def shown(self, request: Request) -> str:
        """Return the manifest as JSON, which is valid YAML."""
        return json.dumps(manifest(request, self), indent=1)

    def submit(self, request: Request, log: Callable[[str], None], follow: bool) -> int:
        """Create the job with kubectl."""
        made = manifest(request, self)
        _kubectl(["create", "-f", "-"], json.dumps(made))
        name = made["items"][1]["metadata"]["name"]
        log(f"RayJob {name} submitted; stop it with: kubectl delete rayjob {name}")
        return _follow(name, log) if follow else 0


def manifest(request: Request, cluster: KubeRay) -> JsonObject:
    """Return a List of the ConfigMap and the RayJob, for `kubectl create`."""
    if cluster.image is None:
        raise ConfigError("--image: needed with --to kuberay: an image with simfl and its dependencies")
    check_out(request, "kuberay")
    _check_out(request, cluster)
    name = _name(request.name)
    return {"apiVersion": "v1", "kind": "List", "items": [_config_map(request, name), _ray_job(request, cluster, name)]}


def _check_out(request: Request, cluster: KubeRay) -> None:
    """Raise ConfigError if the results would be deleted with the pods."""
    if URL.match(request.out):
        return
    if cluster.claim is None:
        raise ConfigError(
            f"--out: {request.out} would be deleted with the pods; give --claim NAME=/path, or a URL as --out"
        )
    mount = _claim(cluster.claim)[1]
    if not f"{request.out}/".startswith(f"{mount.rstrip('/')}/"):
        raise ConfigError(f"--out: {request.out} is not in {mount}, the mount path of the claim")


def _claim(text: str) -> tuple[str, str]:
    name, separator, path = text.partition("=")
    if not (name and separator and path.startswith("/")):
        raise ConfigError(f"--claim: {text!r} given; allowed: the name of a claim and a path, such as results=/shared")
    return name, path


def _name(text: str) -> str:
    """Return a valid Kubernetes name, short because the names of pods are derived from it."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:40].strip("-") or "simfl"


def _config_map(request: Request, name: str) -> JsonObject:
    package = request.package
    if package.bytes > MAX_BYTES:
        raise ConfigError(
            f"{package.folder}: {package.bytes / 1e6:.1f} MB; allowed: {MAX_BYTES / 1e6:.1f} MB with Kubernetes;"
            " exclude files with --exclude, or add them to the image"
        )
    content = {
        _key(number): base64.b64encode((package.folder / file).read_bytes()).decode()
        for number, file in enumerate(package.files)
    }
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"{name}-files"}, "binaryData": content}


def _key(number: int) -> str:
    return f"file-{number:04d}"  # keys must not contain slashes


def _ray_job(request: Request, cluster: KubeRay, name: str) -> JsonObject:
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
            "entrypoint": f"cd {FILES} && {request.command_line}",
            "shutdownAfterJobFinishes": True,
            "ttlSecondsAfterFinished": 600,
            "backoffLimit": 0,
            "rayClusterSpec": {**extra, "headGroupSpec": head, "workerGroupSpecs": [workers]},
        },
    }


def _pod(request: Request, cluster: KubeRay, name: str, container: str, gpus: int | None) -> JsonObject:
    limits = {"cpu": str(cluster.cpus), "memory": cluster.memory}
    if gpus:
        limits["nvidia.com/gpu"] = str(gpus)
    items = [{"key": _key(number), "path": file} for number, file in enumerate(request.package.files)]
    volumes: list[JsonObject] = [{"name": "files", "configMap": {"name": f"{name}-files", "items": items}}]
    mounts: list[JsonObject] = [{"name": "files", "mountPath": FILES, "readOnly": True}]
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
            "terminationGracePeriodSeconds": GRACE_SECONDS,
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


def _follow(name: str, log: Callable[[str], None]) -> int:
    """Print the log of the operator's submitter once it exists, and return the exit code of the job."""
    shown = False
    try:
        while (status := _status(name)) not in EXIT_CODES:
            if not shown:  # the log exists once the operator has started the submitter
                command = ["kubectl", "logs", "--follow", f"job/{name}"]
                shown = subprocess.run(command, stderr=subprocess.DEVNULL).returncode == 0
            time.sleep(POLL_SECONDS)
    except KeyboardInterrupt:
        log(f"RayJob {name} is still running; stop it with: kubectl delete rayjob {name}")
        return 130
    log(f"RayJob {name}: {status.lower()}")
    return EXIT_CODES[status]


def _status(name: str) -> str:
    return _kubectl(["get", "rayjob", name, "-o", "jsonpath={.status.jobStatus}"]).strip()


def _kubectl(arguments: list[str], text: str | None = None) -> str:
    try:
        done = subprocess.run(["kubectl", *arguments], input=text, capture_output=True, text=True)
    except FileNotFoundError:
        raise ConfigError("--to kuberay: kubectl is not installed; --dry-run prints the manifest") from None
    if done.returncode:
        errors = done.stderr.strip().splitlines() or ["no error message"]
        raise ConfigError(f"--to kuberay: kubectl failed: {errors[-1]}")
    return done.stdout
