"""What one timed process leaves for the one that compares: a small file of numbers and tensors. Needs no simfl."""

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

FIRST = "BENCHMARK_FIRST_STEP"  # the environment variable that names the file in which the first local step is noted
_noted = False


def first_step() -> None:
    """To be called before every local step: whoever takes the first of a run, in whichever process, notes the time."""
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
    """Clock and processor time of rounds; call it once before the first and after each."""

    marks: list[float] = field(default_factory=list)  # clock, before the first round and after each
    cpu: list[float] = field(default_factory=list)  # processor time of the family, after the first round and the last

    def mark(self, last: bool = False) -> None:
        """Look at the clock."""
        self.marks.append(time.perf_counter())
        if last or len(self.marks) == 2:
            self.cpu.append(cpu_seconds(os.getpid()))


@dataclass(frozen=True)
class Result:
    """One run of one system."""

    seconds: np.ndarray  # of each round
    cpu: float  # processor time of a round, of all processes, over all rounds but the first
    end: np.ndarray  # final trained weights, flat
    start: np.ndarray  # and those before the first round


def write_result(path: Path, watch: Stopwatch, end: Tensor, start: Tensor) -> None:
    """Write a `Result` as a numpy archive."""
    seconds = np.diff(watch.marks)
    cpu = (watch.cpu[-1] - watch.cpu[0]) / max(1, len(seconds) - 1)
    np.savez(path, seconds=seconds, cpu=cpu, end=end.numpy(), start=start.numpy())


def read_result(path: Path) -> Result:
    """The result in a file."""
    with np.load(path) as found:
        return Result(found["seconds"], float(found["cpu"]), found["end"], found["start"])


def distance(one: Result, other: Result) -> float:
    """How far apart two runs end, as a share of the way that the second went."""
    mode = np.linalg.norm(other.end - other.start)
    return float(np.linalg.norm(one.end - other.end) / mode)
