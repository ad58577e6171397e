"""The RayJob manifest, validated with the schema of the operator."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from operator_rules import refusals
from test_request import RUN

from simfl.errors import ConfigError
from simfl.submit import kuberay_pod
from simfl.submit.kuberay import KubeRay, manifest
from simfl.submit.kuberay_pod import JOB
from simfl.submit.merge_patch import merged
from simfl.submit.request import Request, read

SCHEMA = json.loads((Path(__file__).parent / "rayjob.schema.json").read_text())


@pytest.fixture
def request_(tmp_path: Path) -> Request:
    (tmp_path / "ideas").mkdir()
    (tmp_path / "ideas" / "mine.py").write_text("x = 1\n")
    (tmp_path / "small.yaml").write_text(RUN)
    return read(tmp_path / "small.yaml", tmp_path, "/shared/runs/a", environment=["WANDB_API_KEY"])


def made(request: Request, **settings: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    found = manifest(request, KubeRay(image="simfl:1", claim="results=/shared", **settings))
    return found["items"][0], found["items"][1]


EVERYTHING: dict[str, Any] = {
    "nodes": 3, "max_nodes": 8, "cpus": 4, "gpus": 2, "memory": "32Gi", "head_cpus": 1, "head_memory": "2Gi",
    "ephemeral_storage": "20Gi", "namespace": "team", "labels": {"example.com/team": "vision"},
    "annotations": {"example.com/owner": "Ada Lovelace"}, "node_selector": {"pool": "gpu"},
    "tolerations": ("gpu", "spot=yes:NoSchedule"), "service_account": "trainer", "pull_secrets": ("registry",),
    "restarts": 5, "ray_version": "2.54.1",
}  # fmt: skip


QUEUED = EVERYTHING | {"max_nodes": None, "labels": {"kueue.x-k8s.io/queue-name": "gpu-queue"}}


@pytest.mark.parametrize("settings", [{}, {"token": False}, {"restarts": 0}, {"max_nodes": 4}, EVERYTHING, QUEUED])
def test_the_manifest_is_accepted_by_the_schema_and_the_rules_of_the_operator(
    request_: Request, settings: dict[str, Any]
) -> None:
    files, job = made(request_, **settings)
    jsonschema.validate(files, SCHEMA["ConfigMap"])
    jsonschema.validate(job, SCHEMA["RayJob"])
    assert refusals(job) == []


@pytest.mark.parametrize("name", ["small", "9 lives", "_", "Größe/Ünï", "a" * 80, "x" * 46 + "-y", "a.b_c"])
def test_every_name_of_an_experiment_becomes_one_that_the_operator_accepts(request_: Request, name: str) -> None:
    files, job = made(replace(request_, name=name))
    assert refusals(job) == []
    assert files["metadata"]["name"] == f"{job['metadata']['name']}-files"


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"metadata": {"name": "x" * 48}}, "no more than 47"),
        ({"metadata": {"name": "9x"}}, "DNS-1035"),
        ({"metadata": {"labels": {"team": "a b"}}}, "labels: team=a b"),
        ({"spec": {"rayClusterSpec": {"rayVersion": None}}}, "RayVersion was not specified"),
        ({"spec": {"rayClusterSpec": {"rayVersion": "2.51.9"}}}, "minimum Ray version"),
        ({"spec": {"entrypoint": "cd /simfl && python -m simfl"}}, "entrypoint"),
        ({"spec": {"submitterPodTemplate": {"spec": {"restartPolicy": None}}}}, "restartPolicy"),
        (
            {"spec": {"rayClusterSpec": {"workerGroupSpecs": [{"groupName": "workers", "minReplicas": 9}]}}},
            "minReplicas",
        ),
        ({"spec": {"managedBy": "me"}}, "managedBy: me"),
        ({"spec": {"submissionMode": "SidecarMode"}}, "submitterPodTemplate: not with SidecarMode"),
        ({"spec": {"clusterSelector": {"ray.io/cluster": "x"}}}, "clusterSelector: not with backoffLimit"),
        ({"spec": {"deletionStrategy": {"onSuccess": {"policy": "DeleteSelf"}}}}, "deletionStrategy: needs a feature"),
        ({"spec": {"rayClusterSpec": None}}, "rayClusterSpec: or clusterSelector"),
        ({"spec": {"rayClusterSpec": {"networkPolicy": {"mode": "DenyAll"}}}}, "networkPolicy: needs a feature gate"),
        ({"spec": {"rayClusterSpec": {"authOptions": {"enableK8sTokenAuth": True}}}}, "not supported for a RayJob"),
        ({"spec": {"rayClusterSpec": {"autoscalerOptions": {"idleTimeoutSeconds": -1}}}}, "idleTimeoutSeconds"),
        (
            {"spec": {"rayClusterSpec": {"workerGroupSpecs": [{"groupName": "workers", "priority": 2}]}}},
            "priority needs autoscaler v2",
        ),
        (
            {"spec": {"rayClusterSpec": {"headGroupSpec": {"rayStartParams": {"redis-username": "x"}}}}},
            "redis-username",
        ),
        (
            {
                "metadata": {"labels": {"kueue.x-k8s.io/queue-name": "q"}},
                "spec": {"rayClusterSpec": {"enableInTreeAutoscaling": True}},
            },
            "Kueue: enableInTreeAutoscaling",
        ),
    ],
)
def test_the_rules_of_the_operator_find_mistakes(request_: Request, change: dict[str, Any], line: str) -> None:
    _, job = made(request_)
    assert any(line in one for one in refusals(merged(job, change)))


def test_settings_arrive_in_the_pods_that_need_them(request_: Request) -> None:
    files, job = made(request_, **EVERYTHING)
    spec = job["spec"]["rayClusterSpec"]
    head, worker = spec["headGroupSpec"]["template"]["spec"], spec["workerGroupSpecs"][0]["template"]["spec"]
    submitter = job["spec"]["submitterPodTemplate"]["spec"]
    for pod in (head, worker, submitter):
        assert pod["serviceAccountName"] == "trainer"
        assert pod["imagePullSecrets"] == [{"name": "registry"}]
        assert pod["tolerations"] == [
            {"key": "gpu", "operator": "Exists"},
            {"key": "spot", "operator": "Equal", "value": "yes", "effect": "NoSchedule"},
        ]
    assert (worker["nodeSelector"], "nodeSelector" in head) == ({"pool": "gpu"}, False)
    assert head["containers"][0]["resources"]["limits"] == {"cpu": "1", "memory": "2Gi", "ephemeral-storage": "20Gi"}
    assert worker["containers"][0]["resources"]["limits"] == {
        "cpu": "4", "memory": "32Gi", "ephemeral-storage": "20Gi", "nvidia.com/gpu": "2",
    }  # fmt: skip
    assert job["metadata"]["labels"]["example.com/team"] == "vision"
    assert (files["metadata"]["namespace"], job["metadata"]["namespace"]) == ("team", "team")
    workers = spec["workerGroupSpecs"][0]
    assert (workers["minReplicas"], workers["maxReplicas"], spec["enableInTreeAutoscaling"]) == (3, 8, True)
    assert json.loads(files["data"]["job"])["bundles"] == [{"CPU": 4, "GPU": 2}] * 8
    assert (job["spec"]["backoffLimit"], spec["rayVersion"]) == (5, "2.54.1")


def test_an_attempt_after_a_failure_resumes(request_: Request) -> None:
    """The first attempt finds no run, and begins it."""
    for restarts, expected in ((3, True), (0, False)):
        files, _ = made(request_, restarts=restarts)
        assert ("--resume" in json.loads(files["data"]["job"])["arguments"]) == expected


def test_the_entrypoint_runs_the_arguments_of_the_file_in_the_folder_of_the_files(
    request_: Request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overridden = replace(request_, overrides=("data={name: digits}", "name='a b; c'"))
    files, _ = made(overridden)
    (tmp_path / JOB).write_text(files["data"]["job"])
    called: list[list[str]] = []
    monkeypatch.chdir(tmp_path.parent)
    monkeypatch.setattr(os, "execv", lambda path, words: called.append(words))
    kuberay_pod.run(tmp_path)
    assert called == [[sys.executable, "-m", "simfl", *overridden.arguments[:4], "--resume", *overridden.arguments[4:],
                       "--address", "auto"]]  # fmt: skip
    assert Path.cwd() == tmp_path


def test_the_hook_of_the_head_pod_stops_the_driver_and_waits_for_it(tmp_path: Path) -> None:
    """A stand-in for the package `simfl` takes a moment to end."""
    (tmp_path / "simfl").mkdir()
    (tmp_path / "simfl" / "__init__.py").touch()
    (tmp_path / "simfl" / "__main__.py").write_text(
        "import pathlib, signal, sys, time\n"
        "def end(*_):\n    time.sleep(0.3); pathlib.Path('saved').touch(); sys.exit(130)\n"
        "signal.signal(signal.SIGTERM, end); pathlib.Path('ready').touch()\n"
        "while True: signal.pause()\n"
    )
    driver = subprocess.Popen([sys.executable, "-m", "simfl", "run", "x.yaml"], cwd=tmp_path)
    waited = threading.Thread(target=driver.wait)  # a zombie would count as running
    waited.start()
    while not (tmp_path / "ready").exists():
        time.sleep(0.01)
    kuberay_pod.stop(20)
    assert (tmp_path / "saved").exists()
    waited.join()
    assert driver.returncode == 130


def test_a_patch_is_merged_and_the_identity_of_the_job_is_kept(request_: Request, tmp_path: Path) -> None:
    patch = tmp_path / "patch.yaml"
    patch.write_text(
        "metadata: {labels: {team: fl}}\n"
        "spec:\n"
        "  ttlSecondsAfterFinished: null\n"
        "  rayClusterSpec:\n"
        "    workerGroupSpecs:\n"
        "      - groupName: workers\n"
        "        template:\n"
        "          spec: {priorityClassName: low, containers: [{name: ray-worker, imagePullPolicy: Always}]}\n"
    )
    _, job = made(request_, patch=str(patch), gpus=2)
    jsonschema.validate(job, SCHEMA["RayJob"])
    pod = job["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["template"]["spec"]
    assert (pod["priorityClassName"], pod["containers"][0]["imagePullPolicy"]) == ("low", "Always")
    assert pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "2"
    assert job["metadata"]["labels"] == {"app.kubernetes.io/managed-by": "simfl", "team": "fl"}
    assert "ttlSecondsAfterFinished" not in job["spec"]
    patch.write_text("metadata: {name: another}\n")
    with pytest.raises(ConfigError, match=r"--patch: .*patch.yaml changes metadata.name"):
        made(request_, patch=str(patch))


def test_the_schema_refuses_unknown_fields(request_: Request) -> None:
    _, job = made(request_)
    job["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["replica"] = 1
    with pytest.raises(jsonschema.ValidationError, match="replica"):
        jsonschema.validate(job, SCHEMA["RayJob"])


def test_every_pod_has_every_file_under_its_path(request_: Request) -> None:
    files, job = made(request_)
    cluster = job["spec"]["rayClusterSpec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        volume = group["template"]["spec"]["volumes"][0]["configMap"]
        *items, arguments = volume["items"]
        laid = {item["path"]: base64.b64decode(files["binaryData"][item["key"]]) for item in items}
        assert laid == {"ideas/mine.py": b"x = 1\n", "small.yaml": RUN.encode()}
        assert arguments == {"key": "job", "path": JOB}
    assert job["spec"]["entrypoint"] == "python -m simfl.submit.kuberay_pod run"


def test_only_worker_pods_have_gpus(request_: Request) -> None:
    _, job = made(request_, nodes=2, gpus=4)
    head, (workers,) = job["spec"]["rayClusterSpec"]["headGroupSpec"], job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    assert "nvidia.com/gpu" not in head["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert workers["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "4"
    assert (workers["replicas"], head["rayStartParams"]) == (2, {"num-cpus": "0"})


def test_the_manifest_contains_no_secrets(request_: Request, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "very-secret")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "very-secret")
    text = KubeRay(image="simfl:1", claim="results=/shared").shown(request_)
    assert "very-secret" not in text
    assert '"secretKeyRef": {' in text


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"image": None}, "--image: needed"),
        ({"claim": None}, "/shared/runs/a would be deleted with the pods"),
        ({"claim": "results=/other"}, "/shared/runs/a is not in /other"),
        ({"claim": "results"}, "claim: 'results' given; allowed: the name of a claim and a path"),
        ({"memory": "8 GB"}, "memory: '8 GB' given; allowed: a quantity of Kubernetes"),
        ({"ephemeral_storage": "much"}, "ephemeral_storage: 'much' given"),
        ({"namespace": "Team"}, "namespace: 'Team' given; allowed: a name of Kubernetes"),
        ({"labels": {"a/b/c": "x"}}, "labels: 'a/b/c' given; allowed: a key"),
        ({"labels": {"team": "a b"}}, "labels: 'a b' given; allowed: a value of a label"),
        ({"tolerations": ("gpu:Never",)}, "tolerations: 'gpu:Never' given; allowed: KEY"),
        ({"nodes": 3, "max_nodes": 2}, "max_nodes: 2 is less than nodes, 3"),
        ({"max_nodes": 2, "labels": {"kueue.x-k8s.io/queue-name": "q"}}, "max_nodes: Kueue refuses autoscaling"),
        ({"ray_version": "2.51.0"}, "ray_version: 2.51.0 has no authentication by token"),
        ({"ray_version": "nightly"}, "ray_version: 'nightly' given; allowed: a version"),
        ({"patch": "nowhere.yaml"}, "nowhere.yaml"),
    ],
)
def test_impossible_kuberay_options_are_refused(request_: Request, settings: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        manifest(request_, KubeRay(**{"image": "simfl:1", "claim": "results=/shared"} | settings))


def test_an_error_of_kubectl_is_reported_in_one_line(
    request_: Request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusal = 'Error from server (AlreadyExists): rayjobs.ray.io "small" already exists'
    (tmp_path / "kubectl").write_text(f"#!/bin/bash\necho '{refusal}' >&2\nexit 1\n")
    (tmp_path / "kubectl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(ConfigError, match=r"--to kuberay: kubectl failed: Error from server \(AlreadyExists\)"):
        KubeRay(image="simfl:1", claim="results=/shared").submit(request_, print, follow=False)
