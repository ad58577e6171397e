"""One execution_mode of training, tried: is it what `sequential` does, how long does it take, how much memory does it want.

What is tried leaves nothing behind: no memory of clients, no state of a generator, no peak of memory.
"""

from __future__ import annotations

import gc
import math
import random
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from simfl.client_state import EMPTY, ClientStore
from simfl.experiment import Local
from simfl.protocol import Parts
from simfl.stacking import row
from simfl.training import client_updates as group
from simfl.training.cohort import train_cohort
from simfl.training.compiled import with_programs
from simfl.training.context import PhaseContext
from simfl.training.observer import NullObserver
from simfl.training.plan import ClientPlan, CohortPlan, ExecutionMode
from simfl.weights import State, Weights

PASSES = 3  # of each execution_mode at least: as written, captured, replayed
ENOUGH = 0.3  # seconds after which further passes tell no more
COMPARED = 2  # clients that are held to `sequential`


@dataclass(frozen=True)
class Trial:
    """One execution_mode, and what was measured of it; nothing where it could not be measured."""

    execution_mode: ExecutionMode
    step: float | None = None  # seconds of one local step of one client
    round: float | None = None  # seconds that a round would take
    gap: float | None = None  # how far from `sequential` a client ended, over how far it moved
    memory: int | None = None  # bytes at their highest, the model included; without a GPU not known
    why: str = ""  # it is left out
    starving: bool = False  # for want of memory


@dataclass(frozen=True)
class TrialBench:
    """Visits of a round that is not meant."""

    stage: PhaseContext
    store: ClientStore
    received: Parts
    visits: tuple[ClientPlan, ...]  # of a whole round
    round: int
    workers: int  # that share it

    @staticmethod
    def of(
        stage: PhaseContext,
        store: ClientStore,
        received: Parts,
        visits: tuple[ClientPlan, ...],
        round: int,
        workers: int,
    ) -> TrialBench:
        """With nobody to listen, and nowhere to write to."""
        quiet = replace(stage, programs=None, observer=NullObserver(), drafts={}, drawn={})
        return TrialBench(quiet, ReadOnly(store), received, visits, round, workers)

    def under(self, program: str) -> TrialBench:
        """With local steps run so."""
        return replace(self, stage=with_programs(replace(self.stage, programs=None), program))

    def cut(self, count: int, steps: int) -> list[ClientPlan]:
        """The longest visits, with so many local steps each."""
        return [cut(visit, self.stage.phase.local, steps) for visit in self.visits[-count:]]

    def seconds(self, execution_mode: ExecutionMode, visits: Sequence[ClientPlan]) -> float:
        """Of these visits, from their memory to the sum of what they send."""
        began = time.perf_counter()
        train_cohort(
            self.stage, self.store, self._plan(execution_mode, visits), self.received, execution_mode.mode, "stop"
        )
        if self.stage.device.type == "cuda":
            torch.cuda.synchronize(self.stage.device)
        return time.perf_counter() - began

    def measured(self, execution_mode: ExecutionMode, visits: Sequence[ClientPlan], until: float) -> Trial:
        """The shortest of some passes, and what a round of such would come to."""
        passes: list[float] = []
        while len(passes) < PASSES or (sum(passes) < ENOUGH and time.perf_counter() < until):
            passes.append(self.seconds(execution_mode, visits))
        step, n = (
            min(passes) / max(1, self.num_steps(visits)),
            len(visits) if execution_mode.mode == "vectorized" else 1,
        )
        whole = step * n * turns(len(self.visits), n, self.workers) * self.num_steps(self.visits) / len(self.visits)
        gpu = self.stage.device.type == "cuda"
        return Trial(
            execution_mode, step, whole, memory=torch.cuda.max_memory_allocated(self.stage.device) if gpu else None
        )

    def ends(self, execution_mode: ExecutionMode, visits: Sequence[ClientPlan]) -> list[Weights]:
        """Where the compared clients are after their last step, nothing of it clipped or noised as a whole."""
        bare = replace(self.stage, mechanism=None)
        memories = {visit.client: self.store.get(visit.memory) for visit in visits}
        groups = group.train(
            bare, self._plan(execution_mode, visits), visits, memories, self.received, execution_mode.mode
        )
        ends = [row(one.trained, k) for one in groups for k in range(len(one))][-COMPARED:]
        return [{name: t.detach().clone() for name, t in weights.items()} for weights in ends]

    def num_steps(self, visits: Sequence[ClientPlan]) -> int:
        """Local steps in all."""
        return sum(visit.num_steps(self.stage.phase.local) for visit in visits)

    def _plan(self, execution_mode: ExecutionMode, visits: Sequence[ClientPlan]) -> CohortPlan:
        size = (
            execution_mode.clients_per_batch
            << max(0, -(-len(visits) // execution_mode.clients_per_batch) - 1).bit_length()
        )
        return CohortPlan(self.stage.index, self.round, 0, len(self.visits), tuple(visits), execution_mode, size)


class ReadOnly:
    """Client memory that is read, and forgets what it is told."""

    def __init__(self, store: ClientStore) -> None:
        """What is there is read from there."""
        self.get = store.get

    def write(self, state: State) -> str:
        return EMPTY

    def sync(self, digests: Iterable[str]) -> None:
        """Nothing was written."""


def cut(visit: ClientPlan, local: Local, steps: int) -> ClientPlan:
    """The visit with so many local steps of each unit at most; units that have none are left out."""
    kept = [k for k, rows in enumerate(visit.units) if len(rows)]
    names = tuple(visit.names[k] for k in kept) if visit.names else ()
    visit = replace(visit, units=tuple(visit.units[k] for k in kept), names=names)
    return replace(visit, steps=steps) if longest(visit, local) > steps else visit


def longest(visit: ClientPlan, local: Local) -> int:
    """Local steps of a visit's longest unit."""
    return max((replace(visit, units=(rows,)).num_steps(local) for rows in visit.units), default=0)


def turns(count: int, n: int, workers: int) -> float:
    """How often each worker trains n clients in a round of so many; one alone takes what is left over as a part."""
    return max(1.0, count / n) if workers == 1 else float(math.ceil(math.ceil(count / n) / workers))


def gap(end: Weights, reference: Weights, start: Weights) -> float:
    """‖end − reference‖ / (‖reference − start‖ + 2e-5 ‖reference‖) over all tensors.

    Where nothing moves to speak of, what rounds the weights themselves is then below any tolerance.
    """
    apart = _length(end[name] - there for name, there in reference.items())
    path = _length(there - start[name] for name, there in reference.items())
    return apart / max(1e-30, path + 2e-5 * _length(reference.values()))


def _length(tensors: Iterable[Tensor]) -> float:
    return math.sqrt(math.fsum(float(tensor.double().square().sum()) for tensor in tensors))


@contextmanager
def untouched(device: torch.device) -> Iterator[None]:
    """Inside the block the generators of torch, numpy and Python are lent, and peaks of memory are its own."""
    plain, arrays = random.getstate(), np.random.get_state()  # noqa: NPY002  (whatever others do with it)
    freed(device)
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        try:
            yield
        finally:
            random.setstate(plain)
            np.random.set_state(arrays)  # noqa: NPY002
            freed(device)


def freed(device: torch.device) -> None:
    """Give back what is not in use, and forget how much it was."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
