"""Results of a timed process, in a numpy archive that the comparing process reads. Does not import simfl."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.processes import cpu_seconds

if TYPE_CHECKING:
    from torch import Tensor

FIRST = "BENCHMARK_FIRST_STEP"  # environment variable with the path of the file that records the first local step
_noted = False


def first_step() -> None:
    """Record the time of the first local step of a run; call it before every local step in every process."""
    global _noted
    if _noted or FIRST not in os.environ:
        return
    _noted = True
    try:
        with open(os.environ[FIRST], "x") as file:
            file.write(repr(time.time()))
    except FileExistsError:
        pass  # another process was first


@dataclass
class Stopwatch:
    """Wall-clock and processor times of rounds, recorded before the first round and after each."""

    marks: list[float] = field(default_factory=list)  # wall clock in seconds: before the first round and after each
    cpu: list[float] = field(
        default_factory=list
    )  # processor time of the process and its descendants: after the first round and the last

    def mark(self, last: bool = False) -> None:
        """Record the current time; `last` marks the last round."""
        self.marks.append(time.perf_counter())
        if last or len(self.marks) == 2:
            self.cpu.append(cpu_seconds(os.getpid()))


@dataclass(frozen=True)
class Result:
    """Measurements of one run of one system."""

    seconds: np.ndarray  # [rounds]
    cpu: float  # seconds of processor time per round, over all processes and all rounds except the first
    end: np.ndarray  # trained weights after the last round, flat
    start: np.ndarray  # trained weights before the first round, flat


def measured_on(path: Path) -> str:
    """Return the date of a file of measurements, as YYYY-MM-DD in UTC."""
    return time.strftime("%Y-%m-%d", time.gmtime(path.stat().st_mtime))


def write_result(path: Path, watch: Stopwatch, end: Tensor, start: Tensor) -> None:
    """Write a result as a numpy archive."""
    seconds = np.diff(watch.marks)
    cpu = (watch.cpu[-1] - watch.cpu[0]) / max(1, len(seconds) - 1)
    np.savez(path, seconds=seconds, cpu=cpu, end=end.numpy(), start=start.numpy())


def read_result(path: Path) -> Result:
    """Read the result in a file."""
    with np.load(path) as found:
        return Result(found["seconds"], float(found["cpu"]), found["end"], found["start"])


def distance(one: Result, other: Result) -> float:
    """Return the distance between the final weights of two runs, relative to how far those of `other` moved."""
    moved = np.linalg.norm(other.end - other.start)
    return float(np.linalg.norm(one.end - other.end) / moved)
