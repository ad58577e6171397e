"""Following of a RayJob, with a kubectl that plays scripted states in the JSON of Kubernetes."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from simfl.errors import ConfigError
from simfl.submit.kubectl import RayJobFollower, problems_of

FAKE = f"""#!{sys.executable}
import json, os, pathlib, sys
folder = pathlib.Path(os.environ["PLAY"])
words = [word for word in sys.argv[1:]]
with open(folder / "said", "a") as said:
    print(*words, file=said)
scenes = json.loads((folder / "scenes.json").read_text())
count = folder / "count"
at = int(count.read_text()) if count.exists() else 0
if "get" in words and "rayjob" in words and "json" not in words:  # each poll plays the next scene
    at = min(at + 1, len(scenes))
    count.write_text(str(at))
scene = scenes[max(0, at - 1)]
if "error" in scene:
    print(scene["error"], file=sys.stderr)
    sys.exit(1)
if "logs" in words:
    print(scene.get("log", ""))
elif "rayjob" in words and "json" in words:
    print(json.dumps({{"status": scene["status"]}}))
elif "rayjob" in words:
    print(scene["status"].get("jobDeploymentStatus", ""))
elif "pods" in words and any("ray.io/cluster" in word for word in words):
    print(json.dumps({{"items": scene.get("pods", [])}}))
elif "events" in words:
    print(json.dumps({{"items": scene.get("events", [])}}))
else:
    print(json.dumps({{"items": []}}))
"""


def play(folder: Path, monkeypatch: pytest.MonkeyPatch, *scenes: dict[str, Any]) -> tuple[int, list[str]]:
    """Follow a RayJob through the scenes, and return the exit code and the lines."""
    (folder / "kubectl").write_text(FAKE)
    (folder / "kubectl").chmod(0o755)
    (folder / "scenes.json").write_text(json.dumps(scenes))
    monkeypatch.setenv("PLAY", str(folder))
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setattr("simfl.submit.kubectl.POLL_SECONDS", 0.02)
    lines: list[str] = []
    return RayJobFollower("small", ["--namespace", "team"], lines.append).follow(), lines


def state(deployment: str, job: str = "", **more: Any) -> dict[str, Any]:
    status = {"jobDeploymentStatus": deployment, "jobStatus": job, "rayClusterName": "small-x2x", **more}
    return {"status": {key: value for key, value in status.items() if value != ""}}


def pod(name: str, **status: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "status": status}


UNSCHEDULABLE = pod(
    "small-head",
    conditions=[
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes: Insufficient cpu"}
    ],
)
NO_IMAGE = pod(
    "small-worker",
    containerStatuses=[
        {"state": {"waiting": {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "r/simfl:1"'}}}
    ],
)
STARTING = pod("small-head", containerStatuses=[{"state": {"waiting": {"reason": "ContainerCreating"}}}])


def test_every_state_and_its_reason_is_printed_until_the_job_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, lines = play(
        tmp_path,
        monkeypatch,
        state(""),
        state("Suspended"),
        {**state("Initializing"), "pods": [UNSCHEDULABLE]},
        {**state("Initializing"), "pods": [NO_IMAGE, UNSCHEDULABLE]},
        {**state("Initializing"), "pods": [STARTING]},
        {**state("Running", "RUNNING"), "log": "round 1/1"},
        {**state("Retrying", "FAILED", reason="AppFailed", message="the head pod was evicted", failed=1)},
        {**state("Running", "RUNNING"), "log": "round 1/1"},
        {**state("Complete", "SUCCEEDED"), "log": "round 1/1"},
    )
    assert code == 0
    assert lines == [
        "RayJob small: suspended (the job waits to be admitted, as by Kueue)",
        "RayJob small: initializing (the operator creates the pods)",
        "pod small-head: Unschedulable: 0/3 nodes: Insufficient cpu",
        'pod small-worker: ImagePullBackOff: Back-off pulling image "r/simfl:1"',
        "RayJob small: running (Ray runs the job)",
        "RayJob small: retrying (another attempt follows)",
        "RayJob small: AppFailed: the head pod was evicted",
        "RayJob small: 1 failed attempts so far",
        "RayJob small: running (Ray runs the job)",
        "RayJob small: succeeded",
    ]
    said = (tmp_path / "said").read_text().splitlines()
    assert all(line.startswith("--namespace team ") for line in said)
    assert any("logs --follow" in line and line.endswith("job/small") for line in said)


@pytest.mark.parametrize(
    ("scene", "reason"),
    [
        (
            state("ValidationFailed", reason="ValidationFailed", message="RayVersion was not specified"),
            "RayJob small: ValidationFailed: RayVersion was not specified",
        ),
        (
            state("Failed", reason="SubmissionFailed", message="the submitter failed"),
            "RayJob small: SubmissionFailed: the submitter failed",
        ),
        (state("Failed", "FAILED", reason="AppFailed"), "RayJob small: AppFailed"),
        (state("Failed", reason="DeadlineExceeded"), "RayJob small: DeadlineExceeded"),
        (
            {
                **state("Failed"),
                "events": [{"reason": "InvalidRayJobSpec", "message": "authOptions.mode is 'token'"}],
            },
            "RayJob small: InvalidRayJobSpec: authOptions.mode is 'token'",
        ),
    ],
)
def test_an_end_without_a_job_is_reported_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scene: dict[str, Any], reason: str
) -> None:
    code, lines = play(tmp_path, monkeypatch, scene)
    assert code == 1
    assert reason in lines


def test_a_stopped_job_has_its_own_exit_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, lines = play(tmp_path, monkeypatch, state("Running", "RUNNING"), state("Complete", "STOPPED"))
    assert (code, lines[-1]) == (130, "RayJob small: stopped")


def test_a_failing_kubectl_is_asked_again_and_a_deleted_job_ends_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = {"error": "Unable to connect to the server: net/http: TLS handshake timeout"}
    gone = {"error": 'Error from server (NotFound): rayjobs.ray.io "small" not found'}
    code, lines = play(tmp_path, monkeypatch, state("Running"), failing, failing, state("Complete", "SUCCEEDED"))
    assert (code, lines[-1]) == (0, "RayJob small: succeeded")
    (tmp_path / "count").unlink()
    with pytest.raises(ConfigError, match="RayJob small was deleted"):
        play(tmp_path, monkeypatch, state("Running"), failing, gone)
    (tmp_path / "count").unlink()
    monkeypatch.setattr("simfl.submit.kubectl.MAX_FAILURES", 1)
    with pytest.raises(ConfigError, match=r"TLS handshake timeout; RayJob small may still be running"):
        play(tmp_path, monkeypatch, failing)


def test_a_missing_operator_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simfl.submit.kubectl.UNSEEN_SECONDS", 0.0)
    _, lines = play(tmp_path, monkeypatch, state(""), state(""), state("Complete", "SUCCEEDED"))
    assert lines[0] == "RayJob small: no state after 0 s; is the KubeRay operator running?"


def test_problems_of_pods_are_evictions_and_ended_containers() -> None:
    evicted = pod("a", reason="Evicted", message="The node was low on resource: memory.")
    killed = pod("b", containerStatuses=[{"state": {"terminated": {"reason": "OOMKilled", "exitCode": 137}}}])
    done = pod("c", containerStatuses=[{"state": {"terminated": {"reason": "Completed", "exitCode": 0}}}])
    assert [line for one in (evicted, killed, done) for line in problems_of(one)] == [
        "pod a: Evicted: The node was low on resource: memory.",
        "pod b: OOMKilled (exit code 137)",
    ]
