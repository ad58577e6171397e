"""One execution mode, tried: its results compared with `sequential`, its time, and its memory.

A trial leaves nothing behind: no client state, no state of a generator, no peak of memory.
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
from simfl.stacking import take_row
from simfl.training.client_updates import train_clients
from simfl.training.cohort import train_cohort
from simfl.training.context import PhaseContext
from simfl.training.executor import Executor, compiled_steps
from simfl.training.plan import ClientPlan, CohortPlan, ExecutionMode
from simfl.weights import State, Weights

PASSES = 3  # at least, of each mode: eager, captured, replayed
ENOUGH_SECONDS = 0.3  # measured time after which further passes add no precision
COMPARED = 2  # clients whose results are compared with `sequential`


@dataclass(frozen=True)
class Trial:
    """An execution mode and its measurements; None where they could not be taken.

    Attributes:
        execution_mode: The mode.
        step: Seconds of one local step of one client.
        round: Estimated seconds of a round.
        gap: Distance of a client's final weights from those of `sequential`, relative to the length of its path.
        memory: Peak memory in bytes, model included; only known on a GPU.
        why: The reason why it cannot be used; empty if it can.
        out_of_memory: Whether the reason is memory.
    """

    execution_mode: ExecutionMode
    step: float | None = None
    round: float | None = None
    gap: float | None = None
    memory: int | None = None
    why: str = ""
    out_of_memory: bool = False


@dataclass(frozen=True)
class TrialBench:
    """The client updates of a round, used as a workload for trials.

    Attributes:
        executor: The executor, without observer.
        store: The client states, read-only.
        received: The decoded download.
        clients: All clients of the round, by local steps.
        round: Round of the phase, from 0.
        num_workers: Workers that share a round.
    """

    executor: Executor
    store: ClientStore
    received: Parts
    clients: tuple[ClientPlan, ...]
    round: int
    num_workers: int

    @property
    def context(self) -> PhaseContext:
        """The phase."""
        return self.executor.context

    def with_program(self, program: str) -> TrialBench:
        """Return the bench with local steps compiled, captured or eager."""
        return replace(self, executor=Executor(self.context, compiled=compiled_steps(self.context, program)))

    def longest_clients(self, count: int, steps: int) -> list[ClientPlan]:
        """Return the clients with the most local steps, cut to so many steps each."""
        return [cut(client, self.context.phase.local, steps) for client in self.clients[-count:]]

    def seconds(self, execution_mode: ExecutionMode, clients: Sequence[ClientPlan]) -> float:
        """Return the seconds of a cohort of these clients."""
        began = time.perf_counter()
        train_cohort(self.executor, self.store, self._plan(execution_mode, clients), self.received, "stop")
        if self.context.device.type == "cuda":
            torch.cuda.synchronize(self.context.device)
        return time.perf_counter() - began

    def measure(self, execution_mode: ExecutionMode, clients: Sequence[ClientPlan], until: float) -> Trial:
        """Return the time of the fastest of several passes, and the estimated time of a round."""
        passes: list[float] = []
        while len(passes) < PASSES or (sum(passes) < ENOUGH_SECONDS and time.perf_counter() < until):
            passes.append(self.seconds(execution_mode, clients))
        step = min(passes) / max(1, self.num_steps(clients))
        n = len(clients) if execution_mode.mode == "vectorized" else 1
        batches = batches_per_worker(len(self.clients), n, self.num_workers)
        whole = step * n * batches * self.num_steps(self.clients) / len(self.clients)
        gpu = self.context.device.type == "cuda"
        memory = torch.cuda.max_memory_allocated(self.context.device) if gpu else None
        return Trial(execution_mode, step, whole, memory=memory)

    def final_weights(self, execution_mode: ExecutionMode, clients: Sequence[ClientPlan]) -> list[Weights]:
        """Return the weights of the compared clients after their last step, without clipping or noise of updates."""
        bare = replace(self.executor, context=replace(self.context, mechanism=None), keeps_trained=True)
        states = {client.client: self.store.get(client.state_digest) for client in clients}
        groups = train_clients(bare, self._plan(execution_mode, clients), clients, states, self.received)
        found = [take_row(group.trained, k) for group in groups for k in range(len(group))][-COMPARED:]
        return [{name: t.detach().clone() for name, t in weights.items()} for weights in found]

    def num_steps(self, clients: Sequence[ClientPlan]) -> int:
        """Return the number of local steps of all these clients."""
        return sum(client.num_steps(self.context.phase.local) for client in clients)

    def _plan(self, mode: ExecutionMode, clients: Sequence[ClientPlan]) -> CohortPlan:
        size = mode.clients_per_batch << max(0, -(-len(clients) // mode.clients_per_batch) - 1).bit_length()
        return CohortPlan(self.context.index, self.round, 0, len(self.clients), tuple(clients), mode, size)


class ReadOnlyStore:
    """Client states that can be read, and are never written."""

    def __init__(self, store: ClientStore) -> None:
        """Read from this store."""
        self.get = store.get

    def write(self, state: State) -> str:
        """Drop a state."""
        return EMPTY

    def publish(self) -> None:
        """Do nothing, as nothing was written."""


def cut(client: ClientPlan, local: Local, steps: int) -> ClientPlan:
    """Return the client with at most so many local steps of each unit, and without units that have none."""
    kept = [k for k, rows in enumerate(client.units) if len(rows)]
    names = tuple(client.unit_names[k] for k in kept) if client.unit_names else ()
    client = replace(client, units=tuple(client.units[k] for k in kept), unit_names=names)
    return replace(client, steps_per_unit=steps) if longest_unit(client, local) > steps else client


def longest_unit(client: ClientPlan, local: Local) -> int:
    """Return the number of local steps of a client's longest unit."""
    return max((replace(client, units=(rows,)).num_steps(local) for rows in client.units), default=0)


def batches_per_worker(num_clients: int, n: int, num_workers: int) -> float:
    """Return how many batches of n clients a worker trains per round; a fraction if it works alone."""
    if num_workers == 1:
        return max(1.0, num_clients / n)
    return max(1.0, float(math.ceil(math.ceil(num_clients / n) / num_workers)))


def gap(final: Weights, reference: Weights, start: Weights) -> float:
    """Return ‖final − reference‖ / (‖reference − start‖ + 2e-5 ‖reference‖) over all tensors.

    Where hardly anything moves, the rounding of the weights themselves is then below any tolerance.
    """
    distance = _length(final[name] - t for name, t in reference.items())
    path = _length(t - start[name] for name, t in reference.items())
    return distance / max(1e-30, path + 2e-5 * _length(reference.values()))


def _length(tensors: Iterable[Tensor]) -> float:
    return math.sqrt(math.fsum(float(tensor.double().square().sum()) for tensor in tensors))


@contextmanager
def isolated(device: torch.device) -> Iterator[None]:
    """Restore the generators of torch, numpy and Python after the block, and separate its memory peak from others."""
    python_state, numpy_state = random.getstate(), np.random.get_state()  # noqa: NPY002  (user code may read it)
    free_memory(device)
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        try:
            yield
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)  # noqa: NPY002
            free_memory(device)


def free_memory(device: torch.device) -> None:
    """Free unused memory and reset the peak."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
