"""Injected faults: an algorithm and a data set that fail as the files in a folder say, in any process."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from fakes import Toy

from simfl.algorithms.scaffold import Scaffold
from simfl.data.base import Dataset
from simfl.protocol import ClientUpdate, Parts, State


@dataclass(frozen=True)
class FaultyScaffold(Scaffold):
    """SCAFFOLD whose clients meet the faults listed in a folder; without a list it is plain SCAFFOLD."""

    folder: str = ""

    def prepare_state(self, received: Parts, state: State, update: ClientUpdate) -> State:
        """Meet the faults of this client and round."""
        for number, fault in enumerate(_listed(self.folder)):
            wanted = (
                fault["kind"] in FAULTS
                and fault["client"] in (int(update.client), None)
                and fault["round"] in (int(update.round), None)
            )
            if wanted and num_met(self.folder, number) < fault["times"]:
                _mark(self.folder, number)
                FAULTS[fault["kind"]]()
        return state


@dataclass(frozen=True)
class FaultyData(Toy):
    """The toy data set, which fails to load in workers if the folder says so."""

    folder: str = ""

    def load(self, cache: Path) -> Dataset:
        """Load the data, unless a fault strikes."""
        for number, fault in enumerate(_listed(self.folder)):
            kind, _, action = fault["kind"].partition(": ")
            if kind == "start" and not self._is_driver() and num_met(self.folder, number) < fault["times"]:
                _mark(self.folder, number)
                _die() if action == "die" else _no_disk()
        return super().load(cache)

    def _is_driver(self) -> bool:
        """Return whether this process is the driver: the first one to load the data."""
        first = Path(self.folder) / "first"
        if not first.exists():
            first.write_text(str(os.getpid()))
        return first.read_text() == str(os.getpid())


def order(folder: Path, kind: str, client: int | None = 3, round: int | None = 1, times: int = 1000) -> str:
    """List one more fault in the folder and return the folder; None stands for any client or round."""
    folder.mkdir(exist_ok=True)
    faults = [*_listed(folder), {"kind": kind, "client": client, "round": round, "times": times}]
    (folder / "faults.json").write_text(json.dumps(faults))
    return str(folder)


def num_met(folder: Path | str, number: int = 0) -> int:
    """Return how often a fault struck."""
    return len(list(Path(folder).glob(f"met-{number}-*")))


def processes(folder: Path | str, number: int = 0) -> list[int]:
    """Return the ids of the processes in which a fault struck, in order."""
    return [int(path.name.rpartition("-")[2]) for path in sorted(Path(folder).glob(f"met-{number}-*"))]


def _listed(folder: Path | str) -> list[dict[str, Any]]:
    path = Path(folder) / "faults.json"
    faults: list[dict[str, Any]] = json.loads(path.read_text()) if path.exists() else []
    return faults


def _mark(folder: str, number: int) -> None:
    (Path(folder) / f"met-{number}-{time.monotonic_ns()}-{os.getpid()}").touch()


def _flaky() -> None:
    raise ConnectionError("the reader lost its connection")


def _broken() -> None:
    raise ZeroDivisionError("an error in the client's code")


def _no_gpu_memory() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")


def _no_memory() -> None:
    torch.empty(1 << 60, dtype=torch.uint8)  # torch raises a RuntimeError


def _hang() -> None:
    time.sleep(3600)


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _no_disk() -> None:
    raise FileNotFoundError("no such disk on this machine")


FAULTS: dict[str, Callable[[], None]] = {
    "flaky": _flaky,
    "broken": _broken,
    "no GPU memory": _no_gpu_memory,
    "no memory": _no_memory,
    "hang": _hang,
    "die": _die,
}
