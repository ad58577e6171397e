"""A round as a list of cohorts: which clients, in which order, with which training rows and client states."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice

import numpy as np

from simfl.client_state import EMPTY
from simfl.experiment import Local
from simfl.secure_aggregation.protocol import SecureRound


@dataclass(frozen=True)
class ClientPlan:
    """One client in one round.

    Attributes:
        client: Number of the client.
        weight: Weight of its upload in a weighted mean.
        units: Rows of the training split, one array for each privacy unit that is trained separately; a single array
            without such units.
        state_digest: Digest of the client's stored state.
        relative_weight: `weight` over the mean weight of all clients.
        steps_per_unit: Number of local steps of each unit; None: as the phase's `local` settings say.
        unit_names: Names of the units, by which their batches are drawn; empty: their positions in `units`.
    """

    client: int
    weight: float
    units: tuple[np.ndarray, ...]
    state_digest: str
    relative_weight: float = 1.0
    steps_per_unit: int | None = None
    unit_names: tuple[int, ...] = ()

    def num_steps(self, local: Local) -> int:
        """Return the number of local steps of all units together."""
        if self.steps_per_unit is not None:
            return self.steps_per_unit * len(self.units)
        return sum(num_steps(len(rows), local) for rows in self.units)

    @property
    def num_examples(self) -> int:
        """Number of examples of all units."""
        return sum(len(rows) for rows in self.units)


@dataclass(frozen=True)
class ExecutionMode:
    """The execution mode of training: chosen once per phase and equal on every worker.

    Attributes:
        mode: `sequential` or `vectorized`.
        clients_per_batch: Clients that `vectorized` trains together; a power of two.
        program: The form in which `vectorized` runs its local steps; see `simfl.training.compiled`.
    """

    mode: str
    clients_per_batch: int
    program: str = "auto"

    def __str__(self) -> str:
        if self.mode != "vectorized":
            return self.mode
        return f"{self.mode}, {self.clients_per_batch} clients per batch, {self.program}"


@dataclass(frozen=True)
class CohortPlan:
    """Clients at neighbouring canonical positions of a round, trained on one worker.

    Attributes:
        phase: Number of the phase, from 0.
        round: Finished rounds of the phase; tables and errors show `round + 1`.
        index: Number of the cohort within the round.
        num_sampled: Clients of the round.
        clients: The cohort's clients, in canonical order.
        execution_mode: The mode by which they are trained.
        num_positions: Positions of the round's tree of sums: `clients_per_batch` times a power of two. The last
            positions of a round may be empty.
        secure: The round of secure aggregation; None without it.
    """

    phase: int
    round: int
    index: int
    num_sampled: int
    clients: tuple[ClientPlan, ...]
    execution_mode: ExecutionMode
    num_positions: int
    secure: SecureRound | None = None

    @property
    def clients_per_batch(self) -> int:
        """Clients that are trained together; see `ExecutionMode`."""
        return self.execution_mode.clients_per_batch

    def cost(self, local: Local) -> int:
        """Return the number of local steps, by which cohorts are dispatched."""
        return sum(_steps_of(self.clients, local))

    def __reduce__(self) -> tuple[Callable[..., CohortPlan], tuple[object, ...]]:
        """Pickle all rows as one array, which takes a fifth of the time of hundreds of small ones."""
        units = [rows for client in self.clients for rows in client.units]
        rows = np.concatenate(units) if units else np.empty(0, np.int64)
        clients = [
            (len(c.units), (c.client, c.weight), (c.state_digest, c.relative_weight, c.steps_per_unit, c.unit_names))
            for c in self.clients
        ]
        facts = self.phase, self.round, self.index, self.num_sampled
        rest = self.execution_mode, self.num_positions, self.secure
        return _unpickle, (facts, rows, [len(unit) for unit in units], clients, *rest)


def _unpickle(
    facts: tuple[int, int, int, int],
    rows: np.ndarray,
    lengths: list[int],
    clients: list[tuple[int, tuple[int, float], tuple[str, float, int | None, tuple[int, ...]]]],
    execution_mode: ExecutionMode,
    num_positions: int,
    secure: SecureRound | None,
) -> CohortPlan:
    ends = list(accumulate(lengths))
    units = iter([rows[end - length : end] for end, length in zip(ends, lengths, strict=True)])
    plans = tuple(
        ClientPlan(client, weight, tuple(islice(units, count)), *state) for count, (client, weight), state in clients
    )
    return CohortPlan(*facts, plans, execution_mode, num_positions, secure)


NextRound = Callable[[], Sequence[CohortPlan]]  # returns the plans of the next round, to prepare while a device is busy


def no_next_round() -> Sequence[CohortPlan]:
    """Return no plans, where the next round is not known or not prepared."""
    return ()


def num_steps(num_examples: int, local: Local) -> int:
    """Return the number of local steps of a unit with this many examples."""
    per_epoch = batches_per_epoch(num_examples, local)
    if per_epoch == 0:
        return 0
    return local.steps if local.steps is not None else local.epochs * per_epoch


def batches_per_epoch(num_examples: int, local: Local) -> int:
    """Return the number of batches of an epoch; the last one may be partial unless `drop_last` leaves it out."""
    return num_examples // local.batch_size if local.drop_last else -(-num_examples // local.batch_size)


def last_batch(num_examples: int, local: Local) -> int:
    """Return the size of the smallest batch of an epoch; 0 without batches."""
    if batches_per_epoch(num_examples, local) == 0:
        return 0
    return num_examples % local.batch_size * (not local.drop_last) or local.batch_size


def cohorts(
    clients: list[ClientPlan],
    local: Local,
    execution_mode: ExecutionMode,
    phase: int,
    round_number: int,
    num_workers: int | None = None,
) -> list[CohortPlan]:
    """Sort clients canonically (by local steps, then number) and cut them into aligned blocks.

    Without a number of workers, every block has `clients_per_batch` positions. Otherwise blocks are larger where this
    saves calls: see `_block_sizes`.
    """
    steps = np.array(_steps_of(clients, local), np.int64)
    order = np.lexsort((np.array([client.client for client in clients], np.int64), steps)).tolist()
    ordered = [clients[k] for k in order]
    size = execution_mode.clients_per_batch
    if num_workers is None:
        sizes = [size] * -(-len(ordered) // size)
    else:
        sizes = _block_sizes(steps[order].tolist(), size, num_workers)
    ends = np.cumsum(sizes)
    return [
        CohortPlan(phase, round_number, i, len(clients), tuple(ordered[end - count : end]), execution_mode, count)
        for i, (count, end) in enumerate(zip(sizes, ends.tolist(), strict=True))
    ]


def _steps_of(clients: Sequence[ClientPlan], local: Local) -> list[int]:
    """Return the number of local steps of each client; clients with as many examples share the computation."""
    known: dict[int, int] = {}

    def steps(client: ClientPlan) -> int:
        if client.steps_per_unit is not None or len(client.units) != 1:
            return client.num_steps(local)
        count = len(client.units[0])
        if count not in known:
            known[count] = client.num_steps(local)
        return known[count]

    return [steps(client) for client in clients]


def _block_sizes(costs: list[int], clients_per_batch: int, num_workers: int) -> list[int]:
    """Return the positions of each block, in order: aligned subtrees with `clients_per_batch` positions at the leaves.

    Blocks are dispatched from the end, where updates are longest. A block costs at most one worker's share of all work
    from there on, so the first calls are few and large and the last ones even out the load; and at most a quarter of
    the round, so that no call takes too long. In rounds of 50 unequal clients on 2 workers this gives 11 calls instead
    of 25.
    """
    until = np.concatenate([[0], np.cumsum(costs)])
    sizes: list[int] = []

    def cut(first: int, size: int) -> None:
        if first >= len(costs):
            return
        end = min(first + size, len(costs))
        cost = until[end] - until[first]
        if size == clients_per_batch or (cost * num_workers <= until[end] and cost * 4 <= until[-1]):
            sizes.append(size)
        else:
            cut(first, size // 2)
            cut(first + size // 2, size // 2)

    cut(0, clients_per_batch << max(0, (-(-len(costs) // clients_per_batch) - 1).bit_length()))
    return sizes


def centralized(clients: list[ClientPlan], local: Local) -> ClientPlan:
    """Merge clients into one that holds all their examples and takes as many local steps as all of them together."""
    rows = np.concatenate([rows for client in clients for rows in client.units])
    return ClientPlan(0, 1.0, (rows,), EMPTY, steps_per_unit=sum(client.num_steps(local) for client in clients))
