"""Runs on several nodes of Ray: results are bit-identical to one process, whatever happens to the nodes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from fakes import experiment, run, traces
from nodes import RunProcess, SlowScaffold, can_isolate, cluster, isolated_node, network

from simfl.experiment import Checkpoint
from simfl.models.mlp import Mlp

pytestmark = [pytest.mark.slow, pytest.mark.timeout(290)]
CASE = experiment(SlowScaffold(seconds=0.15), rounds=10)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The traces of the run in one process."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    run(CASE, folder)
    return traces(folder)


def start_run(folder: Path, address: str, *arguments: str) -> RunProcess:
    """Start the run on a Ray that is up."""
    out = folder / "run"
    return RunProcess(CASE, out, address, out / "log.jsonl", arguments).start(folder / "scratch")


def num_busy(process: RunProcess) -> list[int]:
    """Return the number of busy workers of each round."""
    return [sum(busy > 0 for busy in row["busy"]) for row in process.events("round")]


def test_run_on_two_nodes_is_bit_identical_to_one_process(whole: dict[str, str], tmp_path: Path) -> None:
    with cluster(1, 1) as ray:
        process = start_run(tmp_path, ray.address)
        process.end()
    assert traces(tmp_path / "run") == whole
    assert num_busy(process)[-1] == 2


def test_node_that_joins_is_used(whole: dict[str, str], tmp_path: Path) -> None:
    with cluster(1) as ray:
        process = start_run(tmp_path, ray.address)
        process.wait_for(2)
        ray.add_node(num_cpus=1)
        output = process.end()
    assert traces(tmp_path / "run") == whole
    assert num_busy(process)[0] == 1
    assert num_busy(process)[-1] == 2
    assert "1 more worker" in output


def test_run_survives_a_killed_node(whole: dict[str, str], tmp_path: Path) -> None:
    with cluster(1) as ray:
        node = ray.add_node(num_cpus=1)
        process = start_run(tmp_path, ray.address)
        process.wait_for(3)
        ray.remove_node(node, allow_graceful=False)
        output = process.end()
    assert traces(tmp_path / "run") == whole
    assert num_busy(process)[1] == 2
    assert "a worker died" in output


def test_run_of_a_killed_driver_is_resumed_on_another_machine_from_its_copy(
    whole: dict[str, str], tmp_path: Path
) -> None:
    url = f"file://{tmp_path}/copy"
    with cluster(1, 1) as ray:
        first = RunProcess(CASE, url, ray.address, tmp_path / "copy" / "log.jsonl")
        first.environment["SIMFL_CACHE"] = str(tmp_path / "machine-one")
        first.start(tmp_path / "scratch").wait_for(4)
        os.killpg(first.process.pid, signal.SIGKILL)
        first.process.communicate()
        second = RunProcess(CASE, url, ray.address, tmp_path / "copy" / "log.jsonl", ("--resume",))
        second.environment["SIMFL_CACHE"] = str(tmp_path / "machine-two")
        second.start(tmp_path / "scratch").end()
    assert traces(tmp_path / "copy") == whole
    assert json.loads((tmp_path / "copy" / "summary.json").read_text())["resumed_at"][0] >= 3


def test_two_simulations_share_a_cluster(whole: dict[str, str], tmp_path: Path) -> None:
    with cluster(1, 1) as ray:
        both = [start_run(tmp_path / name, ray.address) for name in ("a", "b")]
        for process in both:
            process.end()
    assert [traces(tmp_path / name / "run") for name in ("a", "b")] == [whole, whole]


def test_object_store_may_spill_to_disk(tmp_path: Path) -> None:
    """Weights of 33 MB are broadcast and two sums of the same size return, in stores of 80 MB."""
    large = experiment(
        SlowScaffold(seconds=0.0), rounds=3, learning_rate=0.01, checkpoint=Checkpoint(rounds=3, seconds=0.0)
    )
    large = replace(large, model=Mlp(hidden_sizes=(2048, 2048, 2048)))
    run(large, tmp_path / "alone")
    spilled = tmp_path / "spilled"
    spilled.mkdir()
    with cluster(1, 1, object_spilling_directory=str(spilled)) as ray:
        out = tmp_path / "run"
        process = RunProcess(large, out, ray.address, out / "log.jsonl").start(tmp_path / "scratch")
        process.wait_for(2)
        num_files = sum(path.is_file() for path in spilled.rglob("*"))
        process.end()
    assert traces(out) == traces(tmp_path / "alone")
    assert num_files > 0


@pytest.mark.skipif(not can_isolate(), reason="no network namespaces or private mounts on this machine")
def test_node_without_a_shared_file_system_works(whole: dict[str, str], tmp_path: Path) -> None:
    shared = tmp_path / "shared"  # the driver's folder; the node has an empty one in its place
    shared.mkdir()
    with (
        network() as address,
        cluster(1, node_ip_address=address) as ray,
        isolated_node(ray.address, [shared, Path.home() / ".cache"]) as inside,
    ):
        process = start_run(shared, ray.address, "--workers", "2")
        process.end()
        listed = subprocess.run([*inside.split(), "find", str(shared)], capture_output=True, text=True).stdout
    assert traces(shared / "run") == whole
    assert num_busy(process)[-1] == 2
    assert listed.split() == [str(shared)]  # nothing of the run was written there


def test_workers_see_a_run_folder_that_was_given_as_a_relative_path(whole: dict[str, str], tmp_path: Path) -> None:
    with cluster(1, 1) as ray:
        process = RunProcess(CASE, "run", ray.address, tmp_path / "run" / "log.jsonl", folder=tmp_path)
        output = process.start(tmp_path / "scratch").end()
    assert traces(tmp_path / "run") == whole
    assert "client states are sent" not in output
