"""A worker on whatever machine: what it refuses, where it finds itself, how client memory reaches it."""

from __future__ import annotations

import os
import pickle
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import experiment

from simfl.errors import DataError, RunError
from simfl.runtime.ray import cluster as boot
from simfl.runtime.ray.actor import (
    VERSIONS,
    DriverLocation,
    WorkerActor,
    WorkerLocation,
    WorkerSpec,
    cache_here,
    marker,
)
from simfl.runtime.ray.crew import Crew
from simfl.runtime.worker import WorkerConfig

CASE = experiment("scaffold")


@pytest.fixture
def makings(tmp_path: Path) -> WorkerSpec:
    return WorkerSpec(CASE, tmp_path / "cache", "cpu", CASE.data.load(tmp_path).sha256, VERSIONS)


@pytest.fixture
def setup(tmp_path: Path) -> WorkerConfig:
    return WorkerConfig(CASE, tmp_path / "cache", tmp_path / "run" / "memory", 10, sitting="today")


def begun(makings: WorkerSpec, setup: WorkerConfig) -> tuple[WorkerActor, WorkerLocation]:
    hosted = WorkerActor(DriverLocation.here(), pickle.dumps(makings))
    return hosted, hosted.begin(pickle.dumps(setup), 0, {})


def test_other_versions_are_refused_by_the_name_of_the_machine(makings: WorkerSpec, setup: WorkerConfig) -> None:
    with pytest.raises(RunError, match=rf"^{os.uname().nodename} has .*, the driver .*9\.9"):
        begun(replace(makings, versions={**VERSIONS, "torch": "9.9"}), setup)


def test_other_data_are_refused(makings: WorkerSpec, setup: WorkerConfig) -> None:
    with pytest.raises(DataError, match=r"the data there are not those of the driver"):
        begun(replace(makings, data_sha256="0" * 64), setup)


def test_who_sees_the_drivers_marker_shares_its_disk(makings: WorkerSpec, setup: WorkerConfig) -> None:
    setup.memory.mkdir(parents=True)
    marker(setup.memory, "today").touch()
    _, berth = begun(makings, setup)
    assert not berth.apart
    assert torch.backends.cpu.get_cpu_capability() in berth.kind


def test_who_does_not_leaves_no_trace_of_the_run(makings: WorkerSpec, setup: WorkerConfig) -> None:
    _, berth = begun(makings, setup)
    assert berth.apart
    assert not setup.memory.parent.exists()


def test_a_marker_of_another_sitting_does_not_count(makings: WorkerSpec, setup: WorkerConfig) -> None:
    setup.memory.mkdir(parents=True)
    marker(setup.memory, "yesterday").touch()
    assert begun(makings, setup)[1].apart


def test_a_process_stands_where_the_other_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path.cwd())  # to be back afterwards
    monkeypatch.setattr(sys, "path", list(sys.path))
    DriverLocation(str(tmp_path), ("/of/modules",)).take()
    assert Path.cwd() == tmp_path
    assert sys.path[-1] == "/of/modules"
    DriverLocation("/not/on/this/machine", ()).take()
    assert Path.cwd() == tmp_path


def test_a_folder_that_is_gone_is_no_standpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "job").mkdir()
    monkeypatch.chdir(tmp_path / "job")
    (tmp_path / "job").rmdir()
    assert DriverLocation.here().folder == ""


def test_a_cache_that_cannot_be_here_is_this_machines_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIMFL_CACHE", str(tmp_path / "own"))
    assert cache_here(tmp_path / "drivers") == tmp_path / "drivers"
    (tmp_path / "file").write_text("")
    assert cache_here(tmp_path / "file" / "cache") == tmp_path / "own"


class Resources:
    """Ray, as far as a crew asks it what there is."""

    def __init__(self, total: dict[str, float], free: dict[str, float]) -> None:
        self.total, self.left = total, free

    def cluster_resources(self) -> dict[str, float]:
        return self.total

    def available_resources(self) -> dict[str, float]:
        return self.left


@pytest.mark.parametrize(("total", "device"), [({"CPU": 8.0, "GPU": 2.0}, "cuda"), ({"CPU": 8.0}, "cpu")])
def test_a_cluster_that_is_joined_says_where_gpus_are(
    monkeypatch: pytest.MonkeyPatch, total: dict[str, float], device: str
) -> None:
    monkeypatch.setattr(boot, "ray", lambda address: Resources(total, {}))
    assert Crew("auto", "head:6379").device == device


def test_only_what_others_leave_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    ray: Any = Resources({"CPU": 8.0}, {"CPU": 2.5})
    monkeypatch.setattr(boot, "ray", lambda address: ray)
    assert Crew("auto", "head:6379").free(ray) == 2


def test_a_fixed_number_of_workers_does_not_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert Crew("auto", "head:6379").grows
    assert not Crew(4, "head:6379").grows
    assert not Crew("auto", None).grows


def test_ray_address_is_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    assert Crew("auto", None).grows
    assert boot.place("other:1") == "other:1"
