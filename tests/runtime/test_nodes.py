"""Runs on several nodes of Ray: whatever becomes of the nodes, the bits are those of one process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from fakes import experiment, run, traces
from nodes import Paced, RunSession, apart, can_be_apart, cluster, network

from simfl.experiment import Checkpoint
from simfl.models.mlp import Mlp

pytestmark = [pytest.mark.slow, pytest.mark.timeout(290)]
CASE = experiment(Paced(seconds=0.15), rounds=10)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the run leaves in one process."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    run(CASE, folder)
    return traces(folder)


def sitting(folder: Path, address: str, *words: str) -> RunSession:
    """The run on a Ray that is up, begun."""
    out = folder / "run"
    return RunSession(CASE, out, address, out / "log.jsonl", words).start(folder / "scratch")


def workers(one: RunSession) -> list[int]:
    """How many workers were at work in each round."""
    return [sum(busy > 0 for busy in row["busy"]) for row in one.events("round")]


def test_two_nodes_leave_the_bits_of_one(whole: dict[str, str], tmp_path: Path) -> None:
    with cluster(1, 1) as ray:
        one = sitting(tmp_path, ray.address)
        one.end()
    assert traces(tmp_path / "run") == whole
    assert workers(one)[-1] == 2


def test_a_node_that_comes_is_used(whole: dict[str, str], tmp_path: Path) -> None:
    with cluster(1) as ray:
        one = sitting(tmp_path, ray.address)
        one.wait_for(2)
        ray.add_node(num_cpus=1)
        said = one.end()
    assert traces(tmp_path / "run") == whole
    assert workers(one)[0] == 1
    assert workers(one)[-1] == 2
    assert "1 worker more" in said


def test_a_node_that_is_killed_is_survived(whole: dict[str, str], tmp_path: Path) -> None:
    with cluster(1) as ray:
        node = ray.add_node(num_cpus=1)
        one = sitting(tmp_path, ray.address)
        one.wait_for(3)
        ray.remove_node(node, allow_graceful=False)
        said = one.end()
    assert traces(tmp_path / "run") == whole
    assert workers(one)[1] == 2
    assert "a worker died" in said


def test_a_killed_driver_goes_on_elsewhere_from_its_copy(whole: dict[str, str], tmp_path: Path) -> None:
    url = f"file://{tmp_path}/copy"
    with cluster(1, 1) as ray:
        first = RunSession(CASE, url, ray.address, tmp_path / "copy" / "log.jsonl")
        first.environment["SIMFL_CACHE"] = str(tmp_path / "machine-one")
        first.start(tmp_path / "scratch").wait_for(4)
        os.killpg(first.process.pid, signal.SIGKILL)
        first.process.communicate()
        second = RunSession(CASE, url, ray.address, tmp_path / "copy" / "log.jsonl", ("--resume",))
        second.environment["SIMFL_CACHE"] = str(tmp_path / "machine-two")
        second.start(tmp_path / "scratch").end()
    assert traces(tmp_path / "copy") == whole
    assert json.loads((tmp_path / "copy" / "summary.json").read_text())["resumed_at"][0] >= 3


def test_two_simulations_share_a_cluster(whole: dict[str, str], tmp_path: Path) -> None:
    with cluster(1, 1) as ray:
        both = [sitting(tmp_path / name, ray.address) for name in ("a", "b")]
        for one in both:
            one.end()
    assert [traces(tmp_path / name / "run") for name in ("a", "b")] == [whole, whole]


def test_an_object_store_that_spills(tmp_path: Path) -> None:
    """Weights of 33 MB go down and two sums of as much come up, in stores of 80 MB."""
    large = experiment(Paced(seconds=0.0), rounds=3, learning_rate=0.01, checkpoint=Checkpoint(rounds=3, seconds=0.0))
    large = replace(large, model=Mlp(hidden_sizes=(2048, 2048, 2048)))
    run(large, tmp_path / "alone")
    spilled = tmp_path / "spilled"
    spilled.mkdir()
    with cluster(1, 1, object_spilling_directory=str(spilled)) as ray:
        out = tmp_path / "run"
        one = RunSession(large, out, ray.address, out / "log.jsonl").start(tmp_path / "scratch")
        one.wait_for(2)
        seen = sum(path.is_file() for path in spilled.rglob("*"))
        one.end()
    assert traces(out) == traces(tmp_path / "alone")
    assert seen > 0


@pytest.mark.skipif(not can_be_apart(), reason="no network namespaces or mounts of one's own here")
def test_a_node_without_a_shared_file_system(whole: dict[str, str], tmp_path: Path) -> None:
    shared = tmp_path / "shared"  # the driver's; the node has an empty folder there
    shared.mkdir()
    with (
        network() as address,
        cluster(1, node_ip_address=address) as ray,
        apart(ray.address, [shared, Path.home() / ".cache"]) as inside,
    ):
        one = sitting(shared, ray.address, "--workers", "2")
        one.end()
        there = subprocess.run([*inside.split(), "find", str(shared)], capture_output=True, text=True).stdout
    assert traces(shared / "run") == whole
    assert workers(one)[-1] == 2
    assert there.split() == [str(shared)]  # nothing of the run was written there


def test_a_run_named_by_a_relative_path_is_seen_by_workers_who_stand_elsewhere(
    whole: dict[str, str], tmp_path: Path
) -> None:
    with cluster(1, 1) as ray:
        one = RunSession(CASE, "run", ray.address, tmp_path / "run" / "log.jsonl", folder=tmp_path)
        said = one.start(tmp_path / "scratch").end()
    assert traces(tmp_path / "run") == whole
    assert "client memory travels" not in said
