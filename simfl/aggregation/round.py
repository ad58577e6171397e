"""The aggregation of a round: what workers return for cohorts, reduced to one mean per part."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from simfl.aggregation.columns import Columns
from simfl.aggregation.tree import STACK_WEIGHTS, TreeReducer, concatenated
from simfl.low_rank import LowRankPair, mean_products
from simfl.protocol import AggregatedUpdates, Parts, Weights
from simfl.timing import Clock, timed

FACTORS, PRODUCTS = "factors", "products"  # parts that the server computes from uploads: of low-rank pairs
Layout = dict[str, tuple[tuple[int, ...], torch.dtype]]  # tensor -> shape, dtype; in the order of a masked vector
Unmask = Callable[[str, Weights, Layout, float], Weights]  # part, sum, its tensors, divisor -> mean


@dataclass
class CohortResult:
    """The result of a cohort: sums and table rows, but no single uploads other than those of gathered parts.

    Attributes:
        index: Number of the cohort within the round.
        num_positions: Positions of the round's tree of sums.
        sums: Weighted sum of each part.
        owned: Parts whose sums have no other reader, so that their tensors may be written to.
        gathered: All uploads of each gathered part.
        dtypes: For each part, the dtypes of tensors in half precision, whose sums are in float32.
        layouts: With secure aggregation, the tensors in the vector of each part.
        client_states: Client -> digest of its new stored state.
        ledger: Rows of the ledger for the uploads.
        clients: Rows of the `clients` table, one for each update that came back: phase, round, client, examples, units,
            steps, weight and loss (missing: the update had no examples); with secure aggregation also `cut`, the
            uploaded numbers beyond its clip; with privacy also `not_finite`, the units that count as zero.
        seconds: Seconds of each client update, in the order of `clients`; an equal share where clients train together.
        skipped: Clients whose update failed and was left out.
        norms: With privacy, the norm of each unit's update before clipping. No client sends it.
        messages: Messages for the user, about updates that failed and were retried or left out.
        notes: Notes on the data that the worker encoded for this cohort, each reported once per run.
        clock: Time spent.
    """

    index: int
    num_positions: int
    sums: Parts = field(default_factory=dict)
    owned: frozenset[str] = frozenset()
    gathered: dict[str, list[Weights]] = field(default_factory=dict)
    dtypes: dict[str, dict[str, torch.dtype]] = field(default_factory=dict)
    layouts: dict[str, Layout] = field(default_factory=dict)
    client_states: dict[int, str] = field(default_factory=dict)
    ledger: Columns = field(default_factory=Columns)
    clients: Columns = field(default_factory=Columns)
    seconds: list[float] = field(default_factory=list)
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
            reducer.push(result.sums.pop(part, None), result.num_positions, part in result.owned)
        self._dtypes |= result.dtypes
        self._layouts |= result.layouts
        for part, uploads in result.gathered.items():
            self._gathered.setdefault(part, []).extend(uploads)
        self._num_positions += result.num_positions
        self.results.append(result)

    @property
    def clients(self) -> Columns:
        """Rows of the `clients` table of all cohorts so far."""
        return Columns.concat(result.clients for result in self.results)

    @timed("sum")
    def mean(self, unmask: Unmask | None = None, pairs: Sequence[LowRankPair] = ()) -> AggregatedUpdates | None:
        """Return one mean per part; None if no client came back or the weights are all zero. Call it once.

        The sums are not kept: a mean takes the memory of its sum where no one else reads that.

        Args:
            unmask: Decodes the sums of masked uploads.
            pairs: Low-rank pairs, of whose products the mean is returned where workers have sent them.
        """
        clients = self.clients
        weight, count = math.fsum(clients.items_of("weight")) if clients else 0.0, len(clients)
        if weight == 0.0:
            return None
        parts: dict[str, Weights] = {}
        for part, reducer in self._reducers.items():
            total, owned = reducer.take_total()
            assert total is not None
            divisor = float(count) if self.reduce.get(part) == "clients" else weight
            if unmask is not None:
                parts[part] = unmask(part, total, self._layouts[part], divisor)
                continue
            parts[part] = _divided(total, divisor, owned)
            half = self._dtypes.get(part, {})
            parts[part] |= {name: parts[part][name].to(dtype) for name, dtype in half.items()}
        products, gathered = parts.pop(PRODUCTS, {}), dict(self._gathered)
        if blocks := gathered.pop(FACTORS, []):
            stacked = concatenated(blocks)
            own = [pair for pair in pairs if pair.down in stacked]
            products |= mean_products(own, stacked, stacked[STACK_WEIGHTS].tolist())
        return AggregatedUpdates(parts, gathered, self.num_clients, count, weight, products)


def _divided(total: Weights, divisor: float, owned: bool) -> Weights:
    """Return total / divisor, in the memory of the total if that is owned."""
    tensors = list(total.values())
    if owned and all(t.is_floating_point() for t in tensors):
        if tensors:
            torch._foreach_div_(tensors, divisor)
        return total
    return dict(zip(total, torch._foreach_div(tensors, divisor) if tensors else [], strict=True))
