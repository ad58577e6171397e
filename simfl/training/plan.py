"""A round as a list of cohorts: which clients, in which order, with which training rows and client states."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar, overload

import numpy as np

from simfl.client_state import EMPTY
from simfl.experiment import Local
from simfl.secure_aggregation.protocol import SecureRound


class Origin(NamedTuple):
    """The version of the model from which an asynchronous update is computed.

    Attributes:
        version: Its number; also the round by which the update's draws and learning rates are named.
        staleness: Server steps since that version, at the step that applies the update.
        digest: Digest of the stored download; empty: that of the round.
    """

    version: int
    staleness: int
    digest: str = ""


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
        origin: The version that the client received; None: the download of the round.
    """

    client: int
    weight: float
    units: tuple[np.ndarray, ...]
    state_digest: str
    relative_weight: float = 1.0
    steps_per_unit: int | None = None
    unit_names: tuple[int, ...] = ()
    origin: Origin | None = None

    def num_steps(self, local: Local) -> int:
        """Return the number of local steps of all units together."""
        if self.steps_per_unit is not None:
            return self.steps_per_unit * len(self.units)
        return sum(num_steps(len(rows), local) for rows in self.units)

    @property
    def num_examples(self) -> int:
        """Number of examples of all units."""
        return sum(len(rows) for rows in self.units)


@dataclass(frozen=True, eq=False)
class ClientPlans(Sequence[ClientPlan]):
    """The plans of n clients as arrays: a round may have 10,000 clients.

    Attributes:
        clients: Numbers of the clients, int64 [n].
        weights: Weights of their uploads, float64 [n].
        relative_weights: Weights over the mean weight of all clients, float64 [n].
        rows: Rows of the training split, int64, of which units are ranges.
        unit_starts: First position of each unit in `rows`, int64 [units].
        unit_ends: Position after the last one, int64 [units].
        unit_counts: Number of units of each client, int64 [n]; the units are in the order of the clients.
        state_digests: Digests of the clients' stored states; empty: no client has a state.
        steps_per_unit: See `ClientPlan`; empty: None for every client.
        unit_names: See `ClientPlan`; empty: none for every client.
        origins: See `ClientPlan`; empty: every client received the download of the round.
    """

    clients: np.ndarray
    weights: np.ndarray
    relative_weights: np.ndarray
    rows: np.ndarray
    unit_starts: np.ndarray
    unit_ends: np.ndarray
    unit_counts: np.ndarray
    state_digests: tuple[str, ...] = ()
    steps_per_unit: tuple[int | None, ...] = ()
    unit_names: tuple[tuple[int, ...], ...] = ()
    origins: tuple[Origin | None, ...] = ()

    @staticmethod
    def of(plans: Iterable[ClientPlan]) -> ClientPlans:
        """Return client plans as arrays."""
        if isinstance(plans, ClientPlans):
            return plans
        found = list(plans)
        units = [rows for plan in found for rows in plan.units]
        ends = np.cumsum([len(rows) for rows in units], dtype=np.int64)
        return ClientPlans(
            clients=np.array([plan.client for plan in found], np.int64),
            weights=np.array([plan.weight for plan in found], np.float64),
            relative_weights=np.array([plan.relative_weight for plan in found], np.float64),
            rows=np.concatenate(units) if units else np.empty(0, np.int64),
            unit_starts=np.concatenate([np.zeros(1, np.int64), ends])[:-1] if units else ends,
            unit_ends=ends,
            unit_counts=np.array([len(plan.units) for plan in found], np.int64),
            state_digests=tuple(plan.state_digest for plan in found),
            steps_per_unit=tuple(plan.steps_per_unit for plan in found),
            unit_names=tuple(plan.unit_names for plan in found),
            origins=tuple(plan.origin for plan in found),
        )

    def num_steps(self, local: Local) -> np.ndarray:
        """Return the number of local steps of each client, all its units together, int64 [n]."""
        steps = num_steps(self.unit_ends - self.unit_starts, local)
        until = np.concatenate([[0], np.cumsum(steps)])
        last = np.cumsum(self.unit_counts)
        found: np.ndarray = until[last] - until[last - self.unit_counts]
        for k, steps_of_one in enumerate(self.steps_per_unit):
            if steps_of_one is not None:
                found[k] = steps_of_one * self.unit_counts[k]
        return found

    def take(self, order: np.ndarray) -> ClientPlans:
        """Return the plans at these positions, int64, in this order."""
        ends = np.cumsum(self.unit_counts)
        units = ranges((ends - self.unit_counts)[order], self.unit_counts[order])
        return replace(
            self,
            clients=self.clients[order],
            weights=self.weights[order],
            relative_weights=self.relative_weights[order],
            unit_starts=self.unit_starts[units],
            unit_ends=self.unit_ends[units],
            unit_counts=self.unit_counts[order],
            state_digests=_at(self.state_digests, order),
            steps_per_unit=_at(self.steps_per_unit, order),
            unit_names=_at(self.unit_names, order),
            origins=_at(self.origins, order),
        )

    def digests(self) -> list[str]:
        """Return the digest of each client's stored state."""
        return list(self.state_digests) or [EMPTY] * len(self)

    def stored_digests(self) -> list[str]:
        """Return the digests of everything stored that the updates read: client states and earlier versions."""
        versions = dict.fromkeys(origin.digest for origin in self.origins if origin is not None and origin.digest)
        return [*self.digests(), *versions]

    def __len__(self) -> int:
        return len(self.clients)

    def __iter__(self) -> Iterator[ClientPlan]:
        units = [self.rows[a:b] for a, b in zip(self.unit_starts.tolist(), self.unit_ends.tolist(), strict=True)]
        ends = np.cumsum(self.unit_counts)
        own = [tuple(units[a:b]) for a, b in zip((ends - self.unit_counts).tolist(), ends.tolist(), strict=True)]
        columns = (self.clients.tolist(), self.weights.tolist(), own, self.digests(), self.relative_weights.tolist())
        steps, names = self.steps_per_unit or [None] * len(self), self.unit_names or [()] * len(self)
        yield from map(ClientPlan, *columns, steps, names, self.origins or [None] * len(self))

    @overload
    def __getitem__(self, index: int) -> ClientPlan: ...

    @overload
    def __getitem__(self, index: slice) -> ClientPlans: ...

    def __getitem__(self, index: int | slice) -> ClientPlan | ClientPlans:
        if isinstance(index, slice):
            return self.take(np.arange(len(self))[index])
        k = range(len(self))[index]
        return next(iter(self.take(np.array([k]))))

    def __reduce__(self) -> tuple[type[ClientPlans], tuple[object, ...]]:
        """Pickle the rows of these clients alone."""
        lengths = self.unit_ends - self.unit_starts
        rows, ends = self.rows[ranges(self.unit_starts, lengths)], np.cumsum(lengths)
        facts = self.clients, self.weights, self.relative_weights, rows, ends - lengths, ends, self.unit_counts
        return ClientPlans, (*facts, self.state_digests, self.steps_per_unit, self.unit_names, self.origins)


Item = TypeVar("Item")


def _at(values: tuple[Item, ...], order: np.ndarray) -> tuple[Item, ...]:
    """Return the values at these positions; of no values, none."""
    return tuple(map(values.__getitem__, order.tolist())) if values else ()


def ranges(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the integers of several ranges, one after the other, int64; `starts` and `lengths` are int64 [ranges]."""
    ends = np.cumsum(lengths)
    found: np.ndarray = np.repeat(starts - (ends - lengths), lengths) + np.arange(ends[-1] if len(ends) else 0)
    return found


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
    clients: Sequence[ClientPlan]
    execution_mode: ExecutionMode
    num_positions: int
    secure: SecureRound | None = None

    @property
    def clients_per_batch(self) -> int:
        """Clients that are trained together; see `ExecutionMode`."""
        return self.execution_mode.clients_per_batch

    @property
    def client_numbers(self) -> list[int]:
        """Numbers of the cohort's clients."""
        found: list[int] = ClientPlans.of(self.clients).clients.tolist()
        return found

    def round_of(self, client: ClientPlan) -> int:
        """Return the round that names a client's draws and learning rates: that of the version it received."""
        return self.round if client.origin is None else client.origin.version

    def cost(self, local: Local) -> int:
        """Return the number of local steps, by which cohorts are dispatched."""
        return int(ClientPlans.of(self.clients).num_steps(local).sum())


NextRound = Callable[[], Sequence[CohortPlan]]  # returns the plans of the next round, to prepare while a device is busy


def no_next_round() -> Sequence[CohortPlan]:
    """Return no plans, where the next round is not known or not prepared."""
    return ()


Count = TypeVar("Count", int, np.ndarray)  # of one unit, or int64 [units]


def num_steps(num_examples: Count, local: Local) -> Count:
    """Return the number of local steps of a unit with this many examples."""
    per_epoch = batches_per_epoch(num_examples, local)
    found: Count = local.epochs * per_epoch if local.steps is None else local.steps * (per_epoch > 0)
    return found


def batches_per_epoch(num_examples: Count, local: Local) -> Count:
    """Return the number of batches of an epoch; the last one may be partial unless `drop_last` leaves it out."""
    return num_examples // local.batch_size if local.drop_last else -(-num_examples // local.batch_size)


def last_batch(num_examples: int, local: Local) -> int:
    """Return the size of the smallest batch of an epoch; 0 without batches."""
    if batches_per_epoch(num_examples, local) == 0:
        return 0
    return num_examples % local.batch_size * (not local.drop_last) or local.batch_size


def cohorts(
    clients: Iterable[ClientPlan],
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
    plans = ClientPlans.of(clients)
    steps = plans.num_steps(local)
    order = np.lexsort((plans.clients, steps))
    ordered, size = plans.take(order), execution_mode.clients_per_batch
    if num_workers is None:
        sizes = [size] * -(-len(ordered) // size)
    else:
        sizes = _block_sizes(steps[order], size, num_workers)
    ends = np.cumsum(sizes)
    return [
        CohortPlan(phase, round_number, i, len(ordered), ordered[end - count : end], execution_mode, count)
        for i, (count, end) in enumerate(zip(sizes, ends.tolist(), strict=True))
    ]


def _block_sizes(costs: np.ndarray, clients_per_batch: int, num_workers: int) -> list[int]:
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


def centralized(clients: Sequence[ClientPlan], local: Local) -> ClientPlan:
    """Merge clients into one that holds all their examples and takes as many local steps as all of them together."""
    rows = np.concatenate([rows for client in clients for rows in client.units])
    return ClientPlan(0, 1.0, (rows,), EMPTY, steps_per_unit=sum(client.num_steps(local) for client in clients))
