"""What both of Flower's APIs share: a client's visit in an actor that holds the work, and the clock of the rounds."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import numpy as np
import torch

from benchmarks.plain import Work, flat, read
from benchmarks.result import Stopwatch, write_result

FILE, RESULT = (*sys.argv[1:3], "", "")[:2]  # of this process; actors are told
CLIENT = {"num_cpus": 1, "num_gpus": 0.0}


@cache
def work(file: str) -> Work:
    """Read once in each actor."""
    torch.set_num_threads(1)
    return read(Path(file))


def fit(file: str, arrays: list[np.ndarray], round_number: int, slot: int) -> tuple[list[np.ndarray], int]:
    """The trained weights of a visit and its number of examples."""
    here = work(file)
    visit = here.rounds[round_number][slot]
    here.train(visit, [torch.from_numpy(array) for array in arrays])
    return [p.detach().numpy().copy() for p in here.parameters], int(visit.weight)


class Rounds:
    """Looks at the clock when the first round begins and when each ends, and writes the result after the last."""

    def __init__(self, here: Work) -> None:
        self.start, self.count, self.watch = flat(here.parameters), len(here.rounds), Stopwatch()

    def mark(self, arrays: list[np.ndarray]) -> None:
        """The weights before the first round, or after one."""
        self.watch.mark(last=len(self.watch.marks) == self.count)
        if len(self.watch.marks) > self.count:
            end = flat([torch.from_numpy(np.array(array)) for array in arrays])
            write_result(Path(RESULT), self.watch, end, self.start)
