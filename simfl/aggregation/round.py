"""The aggregation of a round: what workers return for cohorts, reduced to one mean per part."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NotRequired, TypedDict

import torch

from simfl.aggregation.tree import TreeReducer
from simfl.protocol import AggregatedUpdates, Parts, Weights
from simfl.timing import Clock, timed

Layout = dict[str, tuple[tuple[int, ...], torch.dtype]]  # tensor -> shape, dtype; in the order of a masked vector
Unmask = Callable[[str, Weights, Layout, float], Weights]  # part, sum, its tensors, divisor -> mean


class ClientRow(TypedDict):
    """A row of the `clients` table."""

    phase: int
    round: int
    client: int
    examples: int
    units: int
    steps: int
    weight: float
    cut: NotRequired[int]  # with secure aggregation: uploaded numbers beyond its clip
    not_finite: NotRequired[int]  # with privacy: units whose update was not finite, and counts as zero
    loss: float | None  # None: the update had no examples


@dataclass
class CohortResult:
    """The result of a cohort: sums and table rows, but no single uploads other than those of gathered parts.

    Attributes:
        index: Number of the cohort within the round.
        num_positions: Positions of the round's tree of sums.
        sums: Weighted sum of each part.
        gathered: All uploads of each gathered part.
        dtypes: For each part, the dtypes of tensors in half precision, whose sums are in float32.
        layouts: With secure aggregation, the tensors in the vector of each part.
        client_states: Client -> digest of its new stored state.
        ledger: Rows of the ledger for the uploads.
        clients: Rows of the `clients` table.
        skipped: Clients whose update failed and was left out.
        norms: With privacy, the norm of each unit's update before clipping. No client sends it.
        messages: Messages for the user, about updates that failed and were retried or left out.
        notes: Notes on the data that the worker encoded for this cohort, each reported once per run.
        clock: Time spent.
    """

    index: int
    num_positions: int
    sums: Parts = field(default_factory=dict)
    gathered: dict[str, list[Weights]] = field(default_factory=dict)
    dtypes: dict[str, dict[str, torch.dtype]] = field(default_factory=dict)
    layouts: dict[str, Layout] = field(default_factory=dict)
    client_states: dict[int, str] = field(default_factory=dict)
    ledger: list[dict[str, int | str]] = field(default_factory=list)
    clients: list[ClientRow] = field(default_factory=list)
    skipped: list[int] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)
    notes: tuple[str, ...] = ()
    clock: Clock = field(default_factory=Clock)


class RoundAggregator:
    """The results of a round's cohorts so far.

    The cohorts' sums are nodes of one binary tree over the round's positions, so their total does not depend on which
    worker trained which cohort. Sums are added while other cohorts are being trained, and not kept.
    """

    def __init__(self, reduce: Mapping[str, str], num_clients: int) -> None:
        """Start without results.

        Args:
            reduce: The algorithm's rule for each part; see `Algorithm.reduce`.
            num_clients: K, all clients.
        """
        self.reduce, self.num_clients = reduce, num_clients
        self.results: list[CohortResult] = []  # without their sums
        self._reducers: dict[str, TreeReducer] = {}
        self._gathered: dict[str, list[Weights]] = {}
        self._dtypes: dict[str, dict[str, torch.dtype]] = {}
        self._layouts: dict[str, Layout] = {}
        self._num_positions = 0

    @timed("sum")
    def take(self, result: CohortResult) -> None:
        """Add the next cohort, in the order of the round."""
        for part in result.sums:  # in their own order; that of a set would differ between processes
            if part not in self._reducers:
                self._reducers[part] = TreeReducer(self._num_positions)
        for part, reducer in self._reducers.items():
            reducer.push(result.sums.pop(part, None), result.num_positions)
        self._dtypes |= result.dtypes
        self._layouts |= result.layouts
        for part, uploads in result.gathered.items():
            self._gathered.setdefault(part, []).extend(uploads)
        self._num_positions += result.num_positions
        self.results.append(result)

    @timed("sum")
    def mean(self, unmask: Unmask | None = None) -> AggregatedUpdates | None:
        """Return one mean per part; None if no client came back or the weights are all zero.

        `unmask` decodes the sums of masked uploads.
        """
        rows = [row for result in self.results for row in result.clients]
        weight = math.fsum(row["weight"] for row in rows)
        if weight == 0.0:
            return None
        parts: dict[str, Weights] = {}
        for part, reducer in self._reducers.items():
            total = reducer.total()
            assert total is not None
            divisor = float(len(rows)) if self.reduce.get(part) == "clients" else weight
            if unmask is not None:
                parts[part] = unmask(part, total, self._layouts[part], divisor)
                continue
            means = torch._foreach_div(list(total.values()), divisor) if total else []
            parts[part] = dict(zip(total, means, strict=True))
            half = self._dtypes.get(part, {})
            parts[part] |= {name: parts[part][name].to(dtype) for name, dtype in half.items()}
        return AggregatedUpdates(parts, self._gathered, self.num_clients, len(rows), weight)
