"""What one timed process leaves for the one that compares: a small file of numbers and tensors."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import Tensor


@dataclass(frozen=True)
class Result:
    """One run of one system."""

    first_round: float  # Unix time
    seconds: np.ndarray  # of each round
    end: np.ndarray  # final trained weights, flat
    start: np.ndarray  # and those before the first round


def write_result(path: Path, first_round: float, seconds: list[float], end: Tensor, start: Tensor) -> None:
    """Write a `Result` as a numpy archive."""
    np.savez(path, first_round=first_round, seconds=np.asarray(seconds), end=end.numpy(), start=start.numpy())


def read_result(path: Path) -> Result:
    """The result in a file."""
    with np.load(path) as found:
        return Result(float(found["first_round"]), found["seconds"], found["end"], found["start"])


def distance(one: Result, other: Result) -> float:
    """How far apart two runs end, as a share of the way that the second went."""
    way = np.linalg.norm(other.end - other.start)
    return float(np.linalg.norm(one.end - other.end) / way)
