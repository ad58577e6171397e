"""Worker group: its device, its size on a shared cluster, and its reports about the workers' machines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fake_ray import FakeGroup, FakeRay
from fakes import experiment

from simfl.runtime.ray import cluster
from simfl.runtime.ray.actor import WorkerLocation
from simfl.runtime.ray.worker_group import WorkerGroup
from simfl.runtime.worker import WorkerConfig


class Resources:
    """The calls of Ray that count resources."""

    def __init__(self, total: dict[str, float], free: dict[str, float]) -> None:
        self.total, self.free = total, free

    def cluster_resources(self) -> dict[str, float]:
        """Return the total."""
        return self.total

    def available_resources(self) -> dict[str, float]:
        """Return what is free."""
        return self.free


@pytest.mark.parametrize(("total", "device"), [({"CPU": 8.0, "GPU": 2.0}, "cuda"), ({"CPU": 8.0}, "cpu")])
def test_workers_use_the_gpus_of_a_cluster_if_it_has_any(
    monkeypatch: pytest.MonkeyPatch, total: dict[str, float], device: str
) -> None:
    monkeypatch.setattr(cluster, "connect", lambda address: Resources(total, {}))
    assert WorkerGroup("auto", "head:6379").device == device


def test_only_cpus_that_other_jobs_leave_are_free(monkeypatch: pytest.MonkeyPatch) -> None:
    ray: Any = Resources({"CPU": 8.0}, {"CPU": 2.5})
    monkeypatch.setattr(cluster, "connect", lambda address: ray)
    group = WorkerGroup("auto", "head:6379")
    group.ray = ray
    assert group._num_free(ray) == 2
    assert group.describe_free() == "2.5 of 8 CPUs"


def test_group_grows_only_on_a_cluster_and_with_auto(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert WorkerGroup("auto", "head:6379").grows
    assert not WorkerGroup(4, "head:6379").grows
    assert not WorkerGroup("auto", None).grows


def test_ray_address_is_the_default_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    assert WorkerGroup("auto", None).grows
    assert cluster.resolve_address("other:1") == "other:1"


def test_each_fact_about_several_machines_is_reported_once(tmp_path: Path) -> None:
    messages: list[str] = []
    group = FakeGroup(FakeRay())
    group.open(WorkerConfig(experiment(), tmp_path, tmp_path / "states", 10), messages.append)
    for worker, kind in enumerate(("one", "one", "two", "two")):
        group._note_location(worker, WorkerLocation(worker > 0, kind))
    group.close()
    assert len(messages) == 2
    assert messages[0] == f"a worker does not see {tmp_path}: client states are sent through Ray"
    assert messages[1].startswith("workers have different processors (one, two): ")


def test_worker_that_replaces_a_remote_one_may_see_the_folder(tmp_path: Path) -> None:
    group = FakeGroup(FakeRay())
    group.open(WorkerConfig(experiment(), tmp_path, tmp_path / "states", 10), lambda text: None)
    group._note_location(1, WorkerLocation(True, "one"))
    assert group.transfer.remote == {1}
    group._note_location(1, WorkerLocation(False, "one"))
    assert group.transfer.remote == set()
    group.close()
