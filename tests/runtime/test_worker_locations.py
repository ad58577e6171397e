"""The driver's side of client memory that travels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import experiment

from simfl.client_state import EMPTY, FileClientStore
from simfl.runtime.ray.actor import WorkerLocation, marker
from simfl.runtime.ray.berths import Berths
from simfl.runtime.worker import WorkerConfig

STATE = {"algorithm:control": {"w": torch.arange(4.0)}}


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def berths(tmp_path: Path, said: list[str]) -> Berths:
    setup = WorkerConfig(experiment(), tmp_path, tmp_path / "memory", 10, sitting="now")
    return Berths(setup, lambda state: ("put", state), said.append)


def test_memory_goes_only_to_who_does_not_see_the_folder(berths: Berths) -> None:
    digest = berths.store.put(STATE)
    berths.note(0, WorkerLocation(False, "one"))
    berths.note(1, WorkerLocation(True, "one"))
    assert berths.carry(0, [digest]) == {}
    sent: dict[str, Any] = berths.carry(1, [digest, EMPTY, "", digest])
    assert list(sent) == [digest]
    assert torch.equal(sent[digest][1]["algorithm:control"]["w"], STATE["algorithm:control"]["w"])
    berths.note(1, WorkerLocation(False, "one"))  # another worker took the place
    assert berths.carry(1, [digest]) == {}


def test_what_comes_back_is_on_the_disk(berths: Berths, tmp_path: Path) -> None:
    digest = FileClientStore(tmp_path / "elsewhere").put(STATE)
    berths.keep({digest: STATE})
    assert torch.equal(FileClientStore(tmp_path / "memory").get(digest)["algorithm:control"]["w"], torch.arange(4.0))


def test_what_several_machines_mean_is_said_once(berths: Berths, said: list[str]) -> None:
    for place, kind in enumerate(("one", "one", "two", "two")):
        berths.note(place, WorkerLocation(place > 0, kind))
    assert [line.partition(" (")[0].partition(" /")[0] for line in said] == ["a worker does not see", "workers differ"]
    assert said[1].startswith("workers differ (one, two): ")


def test_the_marker_lies_as_long_as_the_pool_is_open(berths: Berths, tmp_path: Path) -> None:
    lies = marker(tmp_path / "memory", "now")
    assert lies.exists()
    berths.close()
    assert not lies.exists()
