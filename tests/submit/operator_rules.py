"""Conditions under which KubeRay's operator accepts a RayJob, after its documentation and messages.

They are those of the versions 1.5.1 to 1.7.0 for what a manifest of simfl and its patch can hold, and stricter than
each of them where the versions differ. Fields that need a feature gate, which is off by default, are refused. A job
with the label of a queue must meet the conditions of Kueue too. The schema of the fields is in rayjob.schema.json.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

Json = dict[str, Any]
LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")  # a DNS-1035 label
QUALIFIED = re.compile(r"(?:([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?)/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
MAX_JOB_NAME, MAX_KUBERNETES_JOB_NAME = 47, 63
QUEUE = "kueue.x-k8s.io/queue-name"
MANAGERS = ("ray.io/kuberay-operator", "kueue.x-k8s.io/multikueue")
GATED = ("networkPolicy", "tlsOptions", "historyServerOptions")  # of the cluster, by feature gates that are off
OF_ITS_OWN = ("upgradeStrategy",)  # of a cluster that no RayJob creates
MIN_PRIORITY_VERSION = (2, 56)  # of Ray, for the priority of a group
MAX_GROUPS_OF_KUEUE = 7
RESERVED = ("RAY_ADDRESS", "RAY_REDIS_ADDRESS", "REDIS_PASSWORD", "REDIS_USERNAME", "RAY_enable_autoscaler_v2")
SHELL = re.compile(r"[;&|<>$`\"'()\n\\]")  # characters with a meaning to the shell of the submitter's script


def refusals(job: Json) -> list[str]:
    """Return every condition that a RayJob violates."""
    spec = job["spec"]
    found = [*_metadata(job["metadata"]), *_job(spec)]
    if "rayClusterSpec" not in spec:
        return [*found, *([] if spec.get("clusterSelector") else ["rayClusterSpec: or clusterSelector must be set"])]
    cluster = spec["rayClusterSpec"]
    return [*found, *_cluster(cluster), *_cluster_options(cluster), *_authentication(cluster), *_kueue(job)]


def _metadata(metadata: Json) -> Iterator[str]:
    name = metadata["name"]
    if len(name) > MAX_JOB_NAME:
        yield f"name: no more than {MAX_JOB_NAME} characters"
    if not LABEL.fullmatch(name) or len(name) > MAX_KUBERNETES_JOB_NAME:
        yield "name: not a DNS-1035 label"
    for key, value in metadata.get("labels", {}).items():
        if not QUALIFIED.fullmatch(key) or not VALUE.fullmatch(value):
            yield f"labels: {key}={value}"


def _job(spec: Json) -> Iterator[str]:
    if spec.get("suspend") and not spec.get("shutdownAfterJobFinishes"):
        yield "suspend: needs shutdownAfterJobFinishes"
    if spec.get("ttlSecondsAfterFinished", 0) < 0:
        yield "ttlSecondsAfterFinished: negative"
    if spec.get("ttlSecondsAfterFinished", 0) > 0 and not spec.get("shutdownAfterJobFinishes"):
        yield "ttlSecondsAfterFinished: needs shutdownAfterJobFinishes"
    if spec.get("backoffLimit", 0) < 0:
        yield "backoffLimit: negative"
    mode = spec.get("submissionMode", "K8sJobMode")
    if mode == "InteractiveMode" and spec.get("backoffLimit", 0) > 0:
        yield "backoffLimit: incompatible with InteractiveMode"
    for key in ("submitterPodTemplate", "submitterConfig"):
        if mode == "SidecarMode" and spec.get(key):
            yield f"{key}: not with SidecarMode"
    if spec.get("clusterSelector"):
        if spec.get("backoffLimit", 0) > 0 or spec.get("suspend"):
            yield "clusterSelector: not with backoffLimit or suspend"
        if not spec["clusterSelector"].get("ray.io/cluster"):
            yield "clusterSelector: names no cluster"
    if spec.get("deletionStrategy"):
        yield "deletionStrategy: needs a feature gate"
    if spec.get("managedBy", MANAGERS[0]) not in MANAGERS:
        yield f"managedBy: {spec['managedBy']}"
    if mode == "K8sJobMode" and SHELL.search(spec.get("entrypoint", "")):
        yield "entrypoint: the submitter puts it into a shell script unquoted"
    submitter = spec.get("submitterPodTemplate", {}).get("spec", {"restartPolicy": "Never", "containers": [{}]})
    if submitter.get("restartPolicy") not in ("Never", "OnFailure"):  # of a Kubernetes Job
        yield "submitterPodTemplate: restartPolicy must be Never or OnFailure"
    for key in ("activeDeadlineSeconds", "preRunningDeadlineSeconds"):
        if key in spec and spec[key] <= 0:
            yield f"{key}: not positive"


def _cluster(spec: Json) -> Iterator[str]:
    scales = spec.get("enableInTreeAutoscaling", False)
    groups = [("head", spec["headGroupSpec"]), *((one["groupName"], one) for one in spec["workerGroupSpecs"])]
    for name, group in groups:
        pod = group["template"]["spec"]
        if not pod.get("containers"):
            yield f"{name}: no container"
        if group.get("resources") and {"num-cpus", "num-gpus", "memory", "resources"} & group["rayStartParams"].keys():
            yield f"{name}: resources twice"
        if "labels" in group.get("rayStartParams", {}):
            yield f"{name}: labels in rayStartParams"
        for key, value in group.get("labels", {}).items():
            if not QUALIFIED.fullmatch(key) or not VALUE.fullmatch(value):
                yield f"{name}: label {key}={value}"
        for variable in pod["containers"][0].get("env", []):
            if variable["name"] in RESERVED:
                yield f"{name}: variable {variable['name']}"
        if scales and pod.get("restartPolicy", "Never") != "Never":
            yield f"{name}: restartPolicy with autoscaling"
        if group.get("suspend"):
            yield f"{name}: suspend needs a feature gate"
    for name, group in groups[1:]:
        least, most = group.get("minReplicas"), group.get("maxReplicas")
        if not scales and (least is None or most is None):
            yield f"{name}: minReplicas and maxReplicas must be set"
        if (least or 0) < 0 or (most or 0) < 0 or (least is not None and most is not None and least > most):
            yield f"{name}: minReplicas {least}, maxReplicas {most}"


def _cluster_options(spec: Json) -> Iterator[str]:
    """Yield refusals of optional parts, which only a patch can add."""
    for key in (*GATED, *OF_ITS_OWN):
        if spec.get(key):
            yield f"{key}: needs a feature gate, or a cluster that no RayJob creates"
    head = spec["headGroupSpec"]
    if "redis-username" in head.get("rayStartParams", {}):
        yield "head: redis-username in rayStartParams"
    if spec.get("gcsFaultToleranceOptions") and "redis-password" in head.get("rayStartParams", {}):
        yield "head: redis-password in rayStartParams"
    options = spec.get("autoscalerOptions", {})
    if options.get("idleTimeoutSeconds", 0) < 0:
        yield "autoscalerOptions: idleTimeoutSeconds is negative"
    if any(one["name"] == "KUBERAY_GEN_AUTOSCALER_START_CMD" for one in options.get("env", [])):
        yield "autoscalerOptions: a variable of the operator"
    for group in spec["workerGroupSpecs"]:
        if "idleTimeoutSeconds" in group and (options.get("version") != "v2" or group["idleTimeoutSeconds"] < 0):
            yield f"{group['groupName']}: idleTimeoutSeconds needs autoscaler v2"
        if group.get("priority") and (options.get("version") != "v2" or _version(spec) < MIN_PRIORITY_VERSION):
            yield f"{group['groupName']}: priority needs autoscaler v2 and Ray 2.56"


def _version(spec: Json) -> tuple[int, int]:
    found = re.match(r"(\d+)\.(\d+)", spec.get("rayVersion") or "")
    return (int(found.group(1)), int(found.group(2))) if found else (0, 0)


def _kueue(job: Json) -> Iterator[str]:
    """Yield refusals of Kueue for a job with a queue."""
    if QUEUE not in job["metadata"].get("labels", {}):
        return
    spec = job["spec"]
    if not spec.get("shutdownAfterJobFinishes"):
        yield "Kueue: shutdownAfterJobFinishes must be set"
    if spec["rayClusterSpec"].get("enableInTreeAutoscaling"):
        yield "Kueue: enableInTreeAutoscaling needs an elastic job"
    groups = [group["groupName"] for group in spec["rayClusterSpec"]["workerGroupSpecs"]]
    if len(groups) > MAX_GROUPS_OF_KUEUE or "head" in groups:
        yield "Kueue: too many groups of workers, or one named head"


def _authentication(spec: Json) -> Iterator[str]:
    options = spec.get("authOptions", {})
    if options.get("enableK8sTokenAuth"):
        yield "authOptions: enableK8sTokenAuth is not supported for a RayJob"
    if options.get("mode") != "token":
        return
    version = spec.get("rayVersion", "")
    found = re.match(r"(\d+)\.(\d+)", version)
    if not version:
        yield "authOptions: RayVersion was not specified"
    elif found is None:
        yield f"authOptions: RayVersion format is invalid: {version}"
    elif (int(found.group(1)), int(found.group(2))) < (2, 52):
        yield f"authOptions: minimum Ray version is 2.52.0, got {version}"
