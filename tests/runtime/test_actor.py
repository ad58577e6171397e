"""Worker actor: it refuses other versions and data, finds the driver's modules, and detects a shared disk."""

from __future__ import annotations

import os
import pickle
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from fakes import experiment

from simfl.errors import DataError, RunError
from simfl.runtime.ray.actor import (
    VERSIONS,
    DriverLocation,
    WorkerActor,
    WorkerLocation,
    WorkerSpec,
    usable_cache,
)
from simfl.runtime.ray.remote_store import marker_file
from simfl.runtime.worker import WorkerConfig

CASE = experiment("scaffold")


@pytest.fixture
def spec(tmp_path: Path) -> WorkerSpec:
    return WorkerSpec(CASE, tmp_path / "cache", "cpu", CASE.data.load(tmp_path).sha256, VERSIONS)


@pytest.fixture
def config(tmp_path: Path) -> WorkerConfig:
    return WorkerConfig(CASE, tmp_path / "cache", tmp_path / "run" / "client_states", 10, session_name="today")


def begin(spec: WorkerSpec, config: WorkerConfig) -> WorkerLocation:
    """Start an actor and bring it into the first phase."""
    return WorkerActor(DriverLocation.here(), pickle.dumps(spec)).begin(pickle.dumps(config), 0, {})


def test_other_versions_are_refused_with_the_name_of_the_machine(spec: WorkerSpec, config: WorkerConfig) -> None:
    with pytest.raises(RunError, match=rf"^{os.uname().nodename} has .*, but the driver has .*9\.9"):
        begin(replace(spec, versions={**VERSIONS, "torch": "9.9"}), config)


def test_other_data_are_refused(spec: WorkerSpec, config: WorkerConfig) -> None:
    with pytest.raises(DataError, match=r"the data differ from the driver's"):
        begin(replace(spec, data_sha256="0" * 64), config)


def test_worker_that_sees_the_marker_shares_the_drivers_disk(spec: WorkerSpec, config: WorkerConfig) -> None:
    config.client_states.mkdir(parents=True)
    marker_file(config.client_states, "today").touch()
    location = begin(spec, config)
    assert not location.remote
    assert torch.backends.cpu.get_cpu_capability() in location.kind


def test_worker_without_the_marker_is_remote_and_writes_nothing(spec: WorkerSpec, config: WorkerConfig) -> None:
    assert begin(spec, config).remote
    assert not config.client_states.parent.exists()


def test_marker_of_another_session_does_not_count(spec: WorkerSpec, config: WorkerConfig) -> None:
    config.client_states.mkdir(parents=True)
    marker_file(config.client_states, "yesterday").touch()
    assert begin(spec, config).remote


def test_driver_location_is_applied_where_its_folder_exists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path.cwd())  # to be back afterwards
    monkeypatch.setattr(sys, "path", list(sys.path))
    DriverLocation(str(tmp_path), ("/of/modules",)).apply()
    assert Path.cwd() == tmp_path
    assert sys.path[-1] == "/of/modules"
    DriverLocation("/not/on/this/machine", ()).apply()
    assert Path.cwd() == tmp_path


def test_removed_working_directory_gives_an_empty_location(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "job").mkdir()
    monkeypatch.chdir(tmp_path / "job")
    (tmp_path / "job").rmdir()
    assert DriverLocation.here().folder == ""


def test_cache_that_cannot_be_made_is_replaced_by_the_machines_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIMFL_CACHE", str(tmp_path / "own"))
    assert usable_cache(tmp_path / "drivers") == tmp_path / "drivers"
    (tmp_path / "file").write_text("")
    assert usable_cache(tmp_path / "file" / "cache") == tmp_path / "own"
