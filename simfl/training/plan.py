"""A round as a list of cohorts: who visits, in which order, with which batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, islice
from typing import Any

import numpy as np

from simfl.client_state import EMPTY
from simfl.experiment import Local
from simfl.optimizers.schedules import Schedule
from simfl.seeds import reused_rng


@dataclass(frozen=True)
class ClientPlan:
    """One client in one round. `units` are the rows of the split that are trained separately, one array each."""

    client: int
    weight: float
    units: tuple[np.ndarray, ...]
    memory: str  # digest of what the client remembers
    relative: float = 1.0  # its weight over the mean weight of all clients
    steps: int | None = None  # local steps of each unit, where not what the phase says
    names: tuple[int, ...] = ()  # of the units, which their batches are drawn by; empty: their places

    def num_steps(self, local: Local) -> int:
        """Local steps of all its units."""
        return sum(num_steps(len(rows), local) if self.steps is None else self.steps for rows in self.units)

    @property
    def examples(self) -> int:
        return sum(len(rows) for rows in self.units)


@dataclass(frozen=True)
class ExecutionMode:
    """How visits are trained: chosen once a phase, and the same on every worker."""

    mode: str  # loop or batch
    clients_per_batch: int  # visits side by side, where they are trained as one program; a power of two
    program: str = "auto"  # how a step of `vectorized` is run: see `cohort.program`

    def __str__(self) -> str:
        return f"{self.mode}, {self.clients_per_batch} wide, {self.program}" if self.mode == "vectorized" else self.mode


@dataclass(frozen=True)
class CohortPlan:
    """Visits at neighbouring canonical positions of a round, trained on one worker."""

    phase: int
    round: int  # finished rounds of the phase before it: tables and errors say one more
    index: int  # place among the round's cohorts
    num_sampled: int
    visits: tuple[ClientPlan, ...]
    execution_mode: ExecutionMode
    size: int  # positions: the width times a power of two; the last of a round may be empty

    @property
    def clients_per_batch(self) -> int:
        return self.execution_mode.clients_per_batch

    def cost(self, local: Local) -> int:
        """Local steps in all: what to dispatch first."""
        return sum(visit.num_steps(local) for visit in self.visits)

    def __reduce__(self) -> tuple[Callable[..., CohortPlan], tuple[Any, ...]]:
        """To another process with all rows in one array: hundreds of small ones take five times as long."""
        units = [rows for visit in self.visits for rows in visit.units]
        rows = np.concatenate(units) if units else np.empty(0, np.int64)
        visits = [(v.client, v.weight, len(v.units), v.memory, v.relative, v.steps, v.names) for v in self.visits]
        facts = self.phase, self.round, self.index, self.num_sampled, self.execution_mode, self.size
        return _from_one_array, (rows, [len(unit) for unit in units], visits, *facts)


def _from_one_array(
    rows: np.ndarray,
    lengths: list[int],
    visits: list[tuple[Any, ...]],
    phase: int,
    round_number: int,
    index: int,
    num_sampled: int,
    execution_mode: ExecutionMode,
    size: int,
) -> CohortPlan:
    ends = list(accumulate(lengths))
    units = iter([rows[end - length : end] for end, length in zip(ends, lengths, strict=True)])
    made = tuple(
        ClientPlan(client, weight, tuple(islice(units, count)), *rest) for client, weight, count, *rest in visits
    )
    return CohortPlan(phase, round_number, index, num_sampled, made, execution_mode, size)


RoundDraft = tuple[list[int], list[ClientPlan]]  # a round's clients, and their visits as if nobody remembered anything
NextRound = Callable[[], Sequence[CohortPlan]]  # the round after, drafted, for whoever waits for a device meanwhile


def no_next_round() -> Sequence[CohortPlan]:
    """Of a round after which none is known."""
    return ()


def num_steps(examples: int, local: Local) -> int:
    """Local steps of a unit with this many examples."""
    if examples == 0:
        return 0
    return local.steps if local.steps is not None else local.epochs * -(-examples // local.batch_size)


def cohorts(
    visits: list[ClientPlan],
    local: Local,
    execution_mode: ExecutionMode,
    phase: int,
    round_number: int,
    workers: int | None = None,
) -> list[CohortPlan]:
    """Sort visits canonically (steps, then client) and cut them into aligned blocks, for this many workers.

    Without their number all blocks have the width of the execution_mode. Else they are larger where it spares calls: `_sizes`.
    """
    ordered = sorted(visits, key=lambda visit: (visit.num_steps(local), visit.client))
    clients_per_batch = execution_mode.clients_per_batch
    count = -(-len(ordered) // clients_per_batch)
    sizes = (
        [clients_per_batch] * count
        if workers is None
        else _sizes([v.num_steps(local) for v in ordered], clients_per_batch, workers)
    )
    ends = np.cumsum(sizes)
    return [
        CohortPlan(phase, round_number, i, len(visits), tuple(ordered[end - size : end]), execution_mode, size)
        for i, (size, end) in enumerate(zip(sizes, ends.tolist(), strict=True))
    ]


def _sizes(costs: list[int], clients_per_batch: int, workers: int) -> list[int]:
    """Positions of each block, in order; aligned subtrees of the round's tree with `width` positions at the leaves.

    Work goes out from the end, where visits are longest. A block costs at most a worker's share of all that is left
    from there on, so the first calls are few and large and the last even out; and at most a quarter of the round, so
    that no call takes too long. In rounds of 50 unequal clients on 2 workers that is 11 calls in place of 25.
    """
    until = np.concatenate([[0], np.cumsum(costs)])
    sizes: list[int] = []

    def cut(first: int, size: int) -> None:
        if first >= len(costs):
            return
        end = min(first + size, len(costs))
        cost = until[end] - until[first]
        if size == clients_per_batch or (cost * workers <= until[end] and cost * 4 <= until[-1]):
            sizes.append(size)
        else:
            cut(first, size // 2)
            cut(first + size // 2, size // 2)

    cut(0, clients_per_batch << max(0, (-(-len(costs) // clients_per_batch) - 1).bit_length()))
    return sizes


def rates(local: Local, rounds: int, round_number: int, steps: int) -> np.ndarray:
    """The learning rate of each local step of a visit, float64 [steps], to be read only."""
    return _rates(local.learning_rate, local.schedule, rounds, round_number, steps)


@lru_cache(256)  # the visits of a round have few lengths
def _rates(learning_rate: float, schedule: Schedule, rounds: int, round_number: int, steps: int) -> np.ndarray:
    found = learning_rate * schedule.factors(rounds, round_number, steps)
    found.setflags(write=False)
    return found


def places(rows: np.ndarray, schedule: np.ndarray) -> np.ndarray:
    """Where among the client's `rows` each row of its batches stands, int64 like `schedule`; 0 for padding."""
    order = np.argsort(rows, kind="stable")
    found = np.searchsorted(rows[order], np.maximum(schedule, rows.min(initial=0)))
    return np.where(schedule >= 0, order[np.minimum(found, len(rows) - 1)], 0) if len(rows) else schedule


def centralized(visits: list[ClientPlan], local: Local) -> ClientPlan:
    """One visit to all the examples of these, with as many local steps as all of them take."""
    rows = np.concatenate([rows for visit in visits for rows in visit.units])
    return ClientPlan(0, 1.0, (rows,), EMPTY, steps=sum(visit.num_steps(local) for visit in visits))


def poisson_batches(rows: np.ndarray, local: Local, *name: str | int, steps: int | None = None) -> np.ndarray:
    """The rows of each local step where each takes part on its own, with probability B / n: int64 [steps, most].

    As many steps as `batches` has, padded by −1; a step may have none.
    """
    steps = num_steps(len(rows), local) if steps is None else steps
    rate = min(1.0, local.batch_size / max(1, len(rows)))
    drawn = [rows[reused_rng(*name, "sample", step).random(len(rows)) < rate] for step in range(steps)]
    table = np.full((steps, max([1, *map(len, drawn)])), -1, dtype=np.int64)
    for step, chosen in enumerate(drawn):
        table[step, : len(chosen)] = chosen
    return table


def batches(rows: np.ndarray, local: Local, *name: str | int, steps: int | None = None) -> np.ndarray:
    """The rows of each local step: int64 [steps, B], padded by −1 where an epoch's last batch is partial.

    Every epoch visits every row once, in an order of its own named by `name` and the epoch.
    """
    steps = num_steps(len(rows), local) if steps is None else steps
    per_epoch = -(-len(rows) // local.batch_size) if len(rows) else 0
    table = np.full((steps, local.batch_size), -1, dtype=np.int64)
    for epoch in range(-(-steps // per_epoch) if per_epoch else 0):
        order = reused_rng(*name, "order", epoch).permutation(rows) if local.shuffle else rows
        padded = np.full(per_epoch * local.batch_size, -1, dtype=np.int64)
        padded[: len(rows)] = order
        first = epoch * per_epoch
        table[first : first + per_epoch] = padded.reshape(per_epoch, -1)[: steps - first]
    return table
