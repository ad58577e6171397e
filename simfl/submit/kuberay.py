"""Kubernetes with the KubeRay operator: a RayJob with its own cluster, and a ConfigMap with the files.

The manifest contains no secrets: variables come from a Secret, and the operator creates the token of the cluster.
Results are written to a PersistentVolumeClaim that all pods mount, or to a URL. An attempt that ends early, as when the
head pod is evicted, is followed by another one that resumes from the last checkpoint.
"""

from __future__ import annotations

import base64
import json
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import ClassVar

from simfl import config
from simfl.constraints import NonNegativeInt, PositiveInt
from simfl.errors import ConfigError
from simfl.runs.folder import JsonObject
from simfl.submit import kubectl
from simfl.submit.cluster import Cluster
from simfl.submit.kuberay_pod import FILES, JOB
from simfl.submit.merge_patch import merged
from simfl.submit.request import URL, Request, check_out

MAX_BYTES = 900_000  # a ConfigMap is limited to 1,048,576 bytes, base64 included
GRACE_SECONDS, HOOK_SECONDS = 120, 100  # time that a pod has for its last checkpoint; share of it for the hook
MAX_NAME = 47  # characters of a RayJob's name that the operator accepts
MIN_TOKEN_VERSION = (2, 52)  # of Ray, for token authentication
QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?(m|k|Ki|[MGTPE]i?)?")
NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
KEY = re.compile(r"([a-z0-9][-a-z0-9.]{0,252}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
LABEL = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
TOLERATION = re.compile(r"(?P<key>[^=:]+)(=(?P<value>[^=:]*))?(:(?P<effect>[^=:]+))?")
EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
QUEUE, ELASTIC = "kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/elastic-job"  # label and annotation of Kueue
SUBMITTER = {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m", "memory": "200Mi"}}


@dataclass(frozen=True)
class KubeRay(Cluster):
    """A RayJob of the KubeRay operator: a head pod for the driver, and worker pods."""

    example: ClassVar[Mapping[str, object]] = {"image": "registry.example/simfl:1", "claim": "results=/results"}

    image: str | None = None  # image with simfl and its dependencies; required
    nodes: PositiveInt = 1  # worker pods
    max_nodes: PositiveInt | None = None  # worker pods that Ray's autoscaler may request; null: no autoscaling
    cpus: PositiveInt = 1  # per worker pod
    gpus: PositiveInt | None = None  # per worker pod
    memory: str = "8Gi"  # per worker pod
    head_cpus: PositiveInt = 1  # CPUs of the head pod, which runs the driver
    head_memory: str | None = None  # memory of the head pod; null: that of a worker pod
    ephemeral_storage: str | None = None  # local disk per pod; null: no request and no limit
    claim: str | None = None  # NAME=/path: PersistentVolumeClaim and its mount path
    secret: str = "simfl"  # Secret with the environment variables, each under its name
    token: bool = True  # require a token for Ray; needs operator 1.5.1 or newer
    ray_version: str | None = None  # version of Ray in the image; null: the one installed here
    namespace: str | None = None  # null: that of kubectl's context
    labels: Mapping[str, str] = field(default_factory=dict)  # of the RayJob, such as kueue.x-k8s.io/queue-name
    annotations: Mapping[str, str] = field(default_factory=dict)  # of the RayJob
    node_selector: Mapping[str, str] = field(default_factory=dict)  # labels of machines for worker pods
    tolerations: tuple[str, ...] = ()  # taints that all pods accept: KEY, KEY=VALUE, KEY:EFFECT or KEY=VALUE:EFFECT
    service_account: str | None = None  # of all pods
    pull_secrets: tuple[str, ...] = ()  # Secrets with which the image is pulled
    restarts: NonNegativeInt = 3  # new attempts after a failure or an eviction, each from the last checkpoint
    patch: str | None = None  # YAML file that is merged into the RayJob; null deletes a key

    def __post_init__(self) -> None:
        for name in ("memory", "head_memory", "ephemeral_storage"):
            _check(name, getattr(self, name), QUANTITY, "a quantity of Kubernetes, such as 8Gi")
        for name in ("namespace", "service_account", "secret"):
            _check(name, getattr(self, name), NAME, "a name of Kubernetes: small letters, digits, '-' and '.'")
        for one in self.pull_secrets:
            _check("pull_secrets", one, NAME, "a name of Kubernetes: small letters, digits, '-' and '.'")
        for name in ("labels", "annotations", "node_selector"):
            for key, value in getattr(self, name).items():
                _check(name, key, KEY, "a key of Kubernetes, such as example.com/team")
                if name != "annotations":
                    _check(name, value, LABEL, "a value of a label: up to 63 letters, digits, '-', '_' and '.'")
        for text in self.tolerations:
            toleration(text)
        if self.max_nodes is not None and self.max_nodes < self.nodes:
            raise ConfigError(f"max_nodes: {self.max_nodes} is less than nodes, {self.nodes}")
        if self.max_nodes is not None and QUEUE in self.labels and self.annotations.get(ELASTIC) != "true":
            raise ConfigError(
                f"max_nodes: Kueue refuses autoscaling of a job with the label {QUEUE}; give nodes alone, or, where"
                f" Kueue allows elastic jobs, the annotation {ELASTIC}=true"
            )
        if self.claim is not None:
            volume_of(self.claim)
        self._check_version()

    def _check_version(self) -> None:
        found = re.match(r"(\d+)\.(\d+)\.\d+", self.version)
        if found is None:
            raise ConfigError(f"ray_version: {self.version!r} given; allowed: a version such as 2.54.0")
        if self.token and (int(found.group(1)), int(found.group(2))) < MIN_TOKEN_VERSION:
            raise ConfigError(
                f"ray_version: {self.version} has no authentication by token; allowed: 2.52.0 and newer, or --no-token"
            )

    @property
    def version(self) -> str:
        """Version of Ray in the image."""
        return self.ray_version or metadata.version("ray")

    def shown(self, request: Request) -> str:
        """Return the manifest as JSON, which is valid YAML."""
        return json.dumps(manifest(request, self), indent=1)

    def submit(self, request: Request, log: Callable[[str], None], follow: bool) -> int:
        """Check the manifest at the server, and create the job with kubectl."""
        made = json.dumps(manifest(request, self))
        namespace = [] if self.namespace is None else ["--namespace", self.namespace]
        kubectl.call([*namespace, "create", "--dry-run=server", "--validate=strict", "-f", "-"], made)
        kubectl.call([*namespace, "create", "-f", "-"], made)
        name = json.loads(made)["items"][1]["metadata"]["name"]
        log(f"RayJob {name} submitted; stop it with: {' '.join(['kubectl', *namespace, 'delete rayjob', name])}")
        return kubectl.RayJobFollower(name, namespace, log).follow() if follow else 0


def _check(name: str, value: str | None, pattern: re.Pattern[str], allowed: str) -> None:
    if value is not None and not pattern.fullmatch(value):
        raise ConfigError(f"{name}: {value!r} given; allowed: {allowed}")


def manifest(request: Request, cluster: KubeRay) -> JsonObject:
    """Return a List of the ConfigMap and the RayJob, for `kubectl create`.

    Raises:
        ConfigError: The image is missing, the results would be lost, the files are too large, or the patch is wrong.
    """
    if cluster.image is None:
        raise ConfigError("--image: needed with --to kuberay: an image with simfl and its dependencies")
    check_out(request, "kuberay")
    _check_out(request, cluster)
    name = _name(request.name)
    job = _ray_job(request, cluster, name)
    if cluster.patch is not None:
        job = _patched(job, Path(cluster.patch))
    return {"apiVersion": "v1", "kind": "List", "items": [_config_map(request, cluster, name), job]}


def _patched(job: JsonObject, file: Path) -> JsonObject:
    patch = config.read_yaml(file)
    if not isinstance(patch, dict):
        raise ConfigError(f"--patch: {file} holds no mapping; give the part of the RayJob that changes")
    found = merged(job, patch)
    for key in ("apiVersion", "kind"):
        if found.get(key) != job[key]:
            raise ConfigError(f"--patch: {file} changes {key}, which is {job[key]!r}")
    if found["metadata"].get("name") != job["metadata"]["name"]:
        raise ConfigError(f"--patch: {file} changes metadata.name; the name of the experiment names the RayJob")
    return found


def _check_out(request: Request, cluster: KubeRay) -> None:
    """Raise ConfigError if the results would be deleted with the pods."""
    if URL.match(request.out):
        return
    if cluster.claim is None:
        raise ConfigError(
            f"--out: {request.out} would be deleted with the pods; give --claim NAME=/path, or a URL as --out"
        )
    mount = volume_of(cluster.claim)[1]
    if not f"{request.out}/".startswith(f"{mount.rstrip('/')}/"):
        raise ConfigError(f"--out: {request.out} is not in {mount}, the mount path of the claim")


def volume_of(text: str) -> tuple[str, str]:
    """Return the name of a claim and its mount path.

    Raises:
        ConfigError: The text is not NAME=/path.
    """
    name, separator, path = text.partition("=")
    if not (NAME.fullmatch(name) and separator and path.startswith("/")):
        raise ConfigError(f"claim: {text!r} given; allowed: the name of a claim and a path, such as results=/shared")
    return name, path


def toleration(text: str) -> JsonObject:
    """Return a toleration of Kubernetes.

    Raises:
        ConfigError: The text is not KEY, KEY=VALUE, KEY:EFFECT or KEY=VALUE:EFFECT.
    """
    found = TOLERATION.fullmatch(text)
    if found is None or not KEY.fullmatch(found["key"]) or found["effect"] not in (None, *EFFECTS):
        raise ConfigError(f"tolerations: {text!r} given; allowed: KEY[=VALUE][:EFFECT], with {', '.join(EFFECTS)}")
    value = {"operator": "Exists"} if found["value"] is None else {"operator": "Equal", "value": found["value"]}
    return {"key": found["key"], **value, **({"effect": found["effect"]} if found["effect"] else {})}


def _name(text: str) -> str:
    """Return a valid name of a RayJob: it begins with a letter, and is so short that the operator accepts it."""
    cleaned = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "simfl"
    return (cleaned if cleaned[0].isalpha() else f"simfl-{cleaned}")[:MAX_NAME].strip("-")


def _metadata(cluster: KubeRay, name: str) -> JsonObject:
    """Return the metadata that the ConfigMap and the RayJob have in common."""
    labels = {"app.kubernetes.io/managed-by": "simfl"}
    return {"name": name, "labels": labels} | ({} if cluster.namespace is None else {"namespace": cluster.namespace})


def _config_map(request: Request, cluster: KubeRay, name: str) -> JsonObject:
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
    job = {"arguments": _arguments(request, cluster), "bundles": _bundles(cluster)}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _metadata(cluster, f"{name}-files"),
        "data": {"job": json.dumps(job)},
        "binaryData": content,
    }


def _arguments(request: Request, cluster: KubeRay) -> list[str]:
    """Return the arguments of simfl; an attempt after the first one resumes, and the first one finds nothing."""
    resumable = replace(request, resume=request.resume or cluster.restarts > 0)
    return [*resumable.arguments, "--address", "auto"]


def _bundles(cluster: KubeRay) -> list[dict[str, float]]:
    """Return the resources of the worker pods that the autoscaler should have, one entry for each pod."""
    resources: dict[str, float] = {"CPU": cluster.cpus, **({"GPU": cluster.gpus} if cluster.gpus else {})}
    return [resources] * (cluster.max_nodes or 0)


def _key(number: int) -> str:
    return f"file-{number:04d}"  # keys must not contain slashes


def _ray_job(request: Request, cluster: KubeRay, name: str) -> JsonObject:
    common = _metadata(cluster, name)
    labels = {**common["labels"], **cluster.labels}
    annotations = {"annotations": dict(cluster.annotations)} if cluster.annotations else {}
    python = shlex.join(shlex.split(request.python))
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {**common, "labels": labels, **annotations},
        "spec": {
            "entrypoint": f"{python} -m simfl.submit.kuberay_pod run",  # plain words only, as its docstring explains
            "submissionMode": "K8sJobMode",
            "shutdownAfterJobFinishes": True,
            "ttlSecondsAfterFinished": 600,
            "backoffLimit": cluster.restarts,
            "rayClusterSpec": _cluster_spec(request, cluster, name),
            "submitterPodTemplate": _submitter(cluster),
        },
    }


def _cluster_spec(request: Request, cluster: KubeRay, name: str) -> JsonObject:
    extra: JsonObject = {"authOptions": {"mode": "token"}} if cluster.token else {}
    if cluster.max_nodes is not None:
        extra["enableInTreeAutoscaling"] = True
    head = _pod(request, cluster, name, _container(request, cluster, "ray-head"))
    worker = _pod(request, cluster, name, _container(request, cluster, "ray-worker"))
    if cluster.node_selector:
        worker["spec"]["nodeSelector"] = dict(cluster.node_selector)
    workers = {
        "groupName": "workers",
        "replicas": cluster.nodes,
        "minReplicas": cluster.nodes,
        "maxReplicas": cluster.max_nodes or cluster.nodes,
        "rayStartParams": {},
        "template": worker,
    }
    head_group = {"rayStartParams": {"num-cpus": "0"}, "template": head}
    return {"rayVersion": cluster.version, **extra, "headGroupSpec": head_group, "workerGroupSpecs": [workers]}


def _container(request: Request, cluster: KubeRay, name: str) -> JsonObject:
    """Return the container of Ray; that of the head stops the driver before the pod ends."""
    is_head = name == "ray-head"
    limits = {"cpu": str(cluster.head_cpus if is_head else cluster.cpus)}
    limits["memory"] = cluster.memory if cluster.head_memory is None or not is_head else cluster.head_memory
    if cluster.ephemeral_storage is not None:
        limits["ephemeral-storage"] = cluster.ephemeral_storage
    if cluster.gpus and not is_head:
        limits["nvidia.com/gpu"] = str(cluster.gpus)
    mounts: list[JsonObject] = [{"name": "files", "mountPath": str(FILES), "readOnly": True}]
    if cluster.claim is not None:
        mounts.append({"name": "shared", "mountPath": volume_of(cluster.claim)[1]})
    variables = [
        {"name": one, "valueFrom": {"secretKeyRef": {"name": cluster.secret, "key": one}}}
        for one in request.environment
    ]
    stop = [*shlex.split(request.python), "-m", "simfl.submit.kuberay_pod", "stop", str(HOOK_SECONDS)]
    return {
        "name": name,
        "image": cluster.image,
        "env": variables,
        "resources": {"limits": limits, "requests": dict(limits)},
        "volumeMounts": mounts,
        **({"lifecycle": {"preStop": {"exec": {"command": stop}}}} if is_head else {}),
    }


def _pod(request: Request, cluster: KubeRay, name: str, container: JsonObject) -> JsonObject:
    items = [{"key": _key(number), "path": file} for number, file in enumerate(request.package.files)]
    items.append({"key": "job", "path": JOB})
    volumes: list[JsonObject] = [{"name": "files", "configMap": {"name": f"{name}-files", "items": items}}]
    if cluster.claim is not None:
        volumes.append({"name": "shared", "persistentVolumeClaim": {"claimName": volume_of(cluster.claim)[0]}})
    return {
        "spec": {
            "terminationGracePeriodSeconds": GRACE_SECONDS,
            **_placement(cluster),
            "containers": [container],
            "volumes": volumes,
        }
    }


def _submitter(cluster: KubeRay) -> JsonObject:
    """Return the pod that submits the job to Ray; the operator's own has no secrets, tolerations or account."""
    container = {"name": "ray-job-submitter", "image": cluster.image, "resources": SUBMITTER}
    return {"spec": {**_placement(cluster), "restartPolicy": "Never", "containers": [container]}}


def _placement(cluster: KubeRay) -> JsonObject:
    """Return the settings that all pods have in common."""
    found: JsonObject = {}
    if cluster.tolerations:
        found["tolerations"] = [toleration(text) for text in cluster.tolerations]
    if cluster.service_account is not None:
        found["serviceAccountName"] = cluster.service_account
    if cluster.pull_secrets:
        found["imagePullSecrets"] = [{"name": one} for one in cluster.pull_secrets]
    return found
