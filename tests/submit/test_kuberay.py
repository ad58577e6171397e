"""The RayJob manifest, validated with the schema of the operator."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from test_request import RUN

from simfl.errors import ConfigError
from simfl.submit.kuberay import KubeRay, manifest
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


def test_the_manifest_matches_the_schema_of_the_operator(request_: Request) -> None:
    for settings in ({}, {"nodes": 3, "cpus": 4, "gpus": 2, "memory": "32Gi"}, {"token": False}):
        files, job = made(request_, **settings)
        jsonschema.validate(files, SCHEMA["ConfigMap"])
        jsonschema.validate(job, SCHEMA["RayJob"])


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
        laid = {item["path"]: base64.b64decode(files["binaryData"][item["key"]]) for item in volume["items"]}
        assert laid == {"ideas/mine.py": b"x = 1\n", "small.yaml": RUN.encode()}
    assert job["spec"]["entrypoint"].startswith("cd /simfl && python -m simfl run small.yaml --out /shared/runs/a")


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
        ({"claim": "results"}, "--claim: 'results' given; allowed: the name of a claim and a path"),
    ],
)
def test_impossible_kuberay_options_are_refused(request_: Request, settings: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        manifest(request_, KubeRay(**{"image": "simfl:1", "claim": "results=/shared"} | settings))


KUBECTL = """#!/bin/bash
echo "$@" >> "$SHIM/said"
case "$1" in
  create) cat > "$SHIM/made.json" ;;
  logs) [ -e "$SHIM/begun" ] && echo "round 1/1" || { touch "$SHIM/begun"; exit 1; } ;;
  get) [ -e "$SHIM/begun" ] && grep -q logs.*job/small "$SHIM/said" && echo -n "$STATUS" ;;
esac
true
"""


@pytest.mark.parametrize(("status", "code"), [("SUCCEEDED", 0), ("FAILED", 1)])
def test_kubectl_creates_the_job_and_is_polled_until_it_ends(
    request_: Request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: str, code: int
) -> None:
    (tmp_path / "kubectl").write_text(KUBECTL)
    (tmp_path / "kubectl").chmod(0o755)
    for name, value in (("PATH", f"{tmp_path}:{os.environ['PATH']}"), ("SHIM", str(tmp_path)), ("STATUS", status)):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("simfl.submit.kuberay.POLL_SECONDS", 0.01)
    said: list[str] = []
    assert KubeRay(image="simfl:1", claim="results=/shared").submit(request_, said.append, follow=True) == code
    assert json.loads((tmp_path / "made.json").read_text())["items"][1]["kind"] == "RayJob"
    assert said[-1] == f"RayJob small: {status.lower()}"


def test_an_error_of_kubectl_is_reported_in_one_line(
    request_: Request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusal = 'Error from server (AlreadyExists): rayjobs.ray.io "small" already exists'
    (tmp_path / "kubectl").write_text(f"#!/bin/bash\necho '{refusal}' >&2\nexit 1\n")
    (tmp_path / "kubectl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(ConfigError, match=r"--to kuberay: kubectl failed: Error from server \(AlreadyExists\)"):
        KubeRay(image="simfl:1", claim="results=/shared").submit(request_, print, follow=False)
