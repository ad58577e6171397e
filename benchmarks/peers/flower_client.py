"""Code that both APIs of Flower share: local training in an actor that keeps the work, and the times of the rounds."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import numpy as np
import torch

from benchmarks.plain import Work, flat, read
from benchmarks.result import Stopwatch, write_result

FILE, RESULT = (*sys.argv[1:3], "", "")[:2]  # of this process; actors get the file with each message
CLIENT = {"num_cpus": 1, "num_gpus": 0.0}


@cache
def work(file: str) -> Work:
    """Return the work in a file, which each actor reads once."""
    torch.set_num_threads(1)
    return read(Path(file))


def fit(file: str, arrays: list[np.ndarray], round_number: int, slot: int) -> tuple[list[np.ndarray], int]:
    """Train a client and return its weights and its number of examples; `slot` is its index in the round."""
    given = work(file)
    update = given.rounds[round_number][slot]
    given.train(update, [torch.from_numpy(array) for array in arrays])
    return [p.detach().numpy().copy() for p in given.parameters], int(update.weight)


class RoundTimer:
    """Times of the rounds; writes the result after the last one."""

    def __init__(self, given: Work) -> None:
        self.start, self.count, self.watch = flat(given.parameters), len(given.rounds), Stopwatch()

    def mark(self, arrays: list[np.ndarray]) -> None:
        """Record the time, with the weights before the first round or after one."""
        self.watch.mark(last=len(self.watch.marks) == self.count)
        if len(self.watch.marks) > self.count:
            end = flat([torch.from_numpy(np.array(array)) for array in arrays])
            write_result(Path(RESULT), self.watch, end, self.start)
