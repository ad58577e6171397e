"""The batches of a client update, drawn before it starts: for each local step its rows and its learning rate."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from simfl.experiment import Local
from simfl.optimizers.schedules import Schedule
from simfl.seeds import reused_rng, seed_for, system_rng
from simfl.training.context import PhaseContext
from simfl.training.plan import ClientPlan, CohortPlan, batches_per_epoch, num_steps

EMPTY_UNIT = np.empty(0, np.int64)  # of a sampled client of which no privacy unit was sampled


@dataclass(frozen=True)
class TrainingUnit:
    """One privacy unit of a client update, or all of it where there are no such units.

    Attributes:
        client: Number of the client.
        unit: Name of the unit; −1 for a client without any sampled unit.
        batches: Rows of the training split, int64 [steps, B]; −1 is padding.
        learning_rates: Learning rate of each local step, float64 [steps].
        key: Key of its random draws.
        num_examples: Examples of the whole client update.
        positions: Position of each row among the client's own examples, like `batches`; None where the algorithm does
            not need it.
    """

    client: int
    unit: int
    batches: np.ndarray
    learning_rates: np.ndarray
    key: int
    num_examples: int
    positions: np.ndarray | None = None

    @property
    def num_steps(self) -> int:
        """Number of local steps."""
        return len(self.batches)


def units_of(client: ClientPlan) -> list[tuple[int, np.ndarray]]:
    """Return the name and the rows of each unit; a client without units has one without examples."""
    names = client.unit_names or range(len(client.units))
    return list(zip(names, client.units, strict=True)) or [(-1, EMPTY_UNIT)]


def draw_unit(context: PhaseContext, plan: CohortPlan, client: ClientPlan, unit: int, rows: np.ndarray) -> TrainingUnit:
    """Draw the batches of one unit."""
    phase, number = context.phase, plan.round_of(client)
    name = (context.seed, "visit", plan.phase, number, client.client, unit)
    if context.has_record_privacy:
        secret, secure = (context.sampling_seed, *name[1:]), context.has_secure_randomness
        table = poisson_batches(
            rows,
            phase.local,
            *secret,
            steps=client.steps_per_unit,
            secure=secure,
            num_examples=context.public_examples,
        )
    else:
        table = batches(rows, phase.local, *name, steps=client.steps_per_unit)
    rates = learning_rates(phase.local, phase.rounds, number, len(table))
    positions = positions_of(rows, table) if phase.algorithm.needs_positions else None
    return TrainingUnit(client.client, unit, table, rates, seed_for(*name) >> 1, client.num_examples, positions)


def batches(rows: np.ndarray, local: Local, *name: str | int, steps: int | None = None) -> np.ndarray:
    """Return the rows of each local step: int64 [steps, B], padded by −1 where an epoch's last batch is partial.

    Every epoch contains every row once, in an order that depends on `name` and the epoch; with `drop_last` without the
    rows of the partial batch.
    """
    steps = num_steps(len(rows), local) if steps is None else steps
    per_epoch = batches_per_epoch(len(rows), local)
    table = np.full((steps, local.batch_size), -1, dtype=np.int64)
    for epoch in range(-(-steps // per_epoch) if per_epoch else 0):
        order = reused_rng(*name, "order", epoch).permutation(rows) if local.shuffle else rows
        padded = np.full(per_epoch * local.batch_size, -1, dtype=np.int64)
        padded[: len(rows)] = order[: len(padded)]
        first = epoch * per_epoch
        table[first : first + per_epoch] = padded.reshape(per_epoch, -1)[: steps - first]
    return table


def poisson_batches(
    rows: np.ndarray,
    local: Local,
    *name: str | int,
    steps: int | None = None,
    secure: bool = False,
    num_examples: int | None = None,
) -> np.ndarray:
    """Return Poisson-sampled batches, in which each row is included independently with probability B / n.

    The result is int64 [steps, largest batch], padded by −1; a batch may be empty. It has as many steps as `batches`.

    Args:
        rows: Rows of the client.
        local: Settings of local training.
        name: Names the draws.
        steps: Number of local steps; None: as `batches` takes for n rows.
        secure: Sample by the operating system's randomness.
        num_examples: n; None: the number of rows.
    """
    count = len(rows) if num_examples is None else num_examples
    steps = num_steps(count, local) if steps is None else steps
    rate = min(1.0, local.batch_size / max(1, count))
    draws = [(system_rng() if secure else reused_rng(*name, "sample", k)).random(len(rows)) for k in range(steps)]
    sampled = [rows[draw < rate] for draw in draws]
    table = np.full((steps, max([1, *map(len, sampled)])), -1, dtype=np.int64)
    for step, chosen in enumerate(sampled):
        table[step, : len(chosen)] = chosen
    return table


def learning_rates(local: Local, num_rounds: int, round_number: int, steps: int) -> np.ndarray:
    """Return the learning rate of each local step of an update, float64 [steps], read-only."""
    return _learning_rates(local.learning_rate, local.schedule, num_rounds, round_number, steps)


@lru_cache(256)  # the updates of a round have few different lengths
def _learning_rates(rate: float, schedule: Schedule, num_rounds: int, round_number: int, steps: int) -> np.ndarray:
    found = rate * schedule.factors(num_rounds, round_number, steps)
    found.setflags(write=False)
    return found


def positions_of(rows: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Return the position of each row of `table` among the client's `rows`, int64 like `table`; 0 for padding."""
    order = np.argsort(rows, kind="stable")
    found = np.searchsorted(rows[order], np.maximum(table, rows.min(initial=0)))
    return np.where(table >= 0, order[np.minimum(found, len(rows) - 1)], 0) if len(rows) else table
