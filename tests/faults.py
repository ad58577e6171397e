"""Faults to order: an algorithm whose clients meet what a folder says, in whatever process they are trained."""

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
class Troubled(Scaffold):
    """SCAFFOLD whose clients meet the faults listed in a folder; without a list it is SCAFFOLD."""

    folder: str = ""

    def prepare(self, received: Parts, state: State, update: ClientUpdate) -> State:
        path = Path(self.folder) / "faults.json"
        for number, fault in enumerate(json.loads(path.read_text()) if path.exists() else []):
            wanted = (
                fault["kind"] in FAULTS
                and fault["client"] in (int(update.client), None)
                and fault["round"] in (int(update.round), None)
            )
            if wanted and met(self.folder, number) < fault["times"]:
                _mark(self.folder, number)
                FAULTS[fault["kind"]]()
        return state


def order(folder: Path, kind: str, client: int | None = 3, round: int | None = 1, times: int = 1000) -> str:
    """List one more fault in the folder, for an algorithm with this folder; None is any client, any round."""
    folder.mkdir(exist_ok=True)
    path = folder / "faults.json"
    faults: list[Any] = json.loads(path.read_text()) if path.exists() else []
    faults.append({"kind": kind, "client": client, "round": round, "times": times})
    path.write_text(json.dumps(faults))
    return str(folder)


def _mark(folder: str, number: int) -> None:
    (Path(folder) / f"met-{number}-{time.monotonic_ns()}-{os.getpid()}").touch()


def met(folder: Path | str, number: int = 0) -> int:
    """How often a fault was met."""
    return len(list(Path(folder).glob(f"met-{number}-*")))


def processes(folder: Path | str, number: int = 0) -> list[int]:
    """The processes that met a fault, in order."""
    return [int(path.name.rpartition("-")[2]) for path in sorted(Path(folder).glob(f"met-{number}-*"))]


def _flaky() -> None:
    raise ConnectionError("the reader lost its connection")


def _broken() -> None:
    raise ZeroDivisionError("the client's own words")


def _no_gpu_memory() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")


def _no_memory() -> None:
    torch.empty(1 << 60, dtype=torch.uint8)  # torch's own words: a RuntimeError


def _hang() -> None:
    time.sleep(3600)


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


FAULTS: dict[str, Callable[[], None]] = {
    "flaky": _flaky,
    "broken": _broken,
    "no GPU memory": _no_gpu_memory,
    "no memory": _no_memory,
    "hang": _hang,
    "die": _die,
}


@dataclass(frozen=True)
class Moody(Toy):
    """The toy data set, which every process but the first to read it may fail to read, if the folder says so."""

    folder: str = ""

    def load(self, cache: Path) -> Dataset:
        path = Path(self.folder) / "faults.json"
        for number, fault in enumerate(json.loads(path.read_text()) if path.exists() else []):
            kind, _, what = fault["kind"].partition(": ")
            if kind == "start" and not self._first() and met(self.folder, number) < fault["times"]:
                _mark(self.folder, number)
                _die() if what == "die" else _no_disk()
        return super().load(cache)

    def _first(self) -> bool:
        """Whether this process is the driver: the first to come here."""
        first = Path(self.folder) / "first"
        if not first.exists():
            first.write_text(str(os.getpid()))
        return first.read_text() == str(os.getpid())


def _no_disk() -> None:
    raise FileNotFoundError("no such disk on this machine")
