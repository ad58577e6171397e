"""How long work takes on each worker, learned from what was measured, and who gets which work so that all ends early.

Kept in memory alone and of no influence on results: a resumed run learns again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping

import numpy as np

Shape = tuple[float, ...]  # what the seconds of a piece of work grow with: calls (1), visits, local steps

KEPT = 0.9  # of the weight of a worker's earlier measurements, when one more has come
SURPRISE = 4.0  # at most so many times slower, or faster, than thought is believed at once
DOUBT = 0.3  # how far a worker that gets no work is thought back to the average, each time
LEAST = 1e-6  # seconds that any work takes
PRIOR = 1e-4  # how much parts of the cost that nothing tells apart lean to zero
TURNS = 3  # of finding the parts, then each worker's slowness; every time from where the last ended


class Costs:
    """Seconds of one kind of work: parts that all workers share, times each worker's slowness.

    seconds(worker, shape) = slowness[worker] · Σ part · shape: least squares of relative errors, in which measurements
    are forgotten by and by. No part is below zero, and slowness is 1 in the mean over the workers.
    """

    def __init__(self) -> None:
        self.slowness: dict[int, float] = {}
        self._warm: set[int] = set()
        self._products: dict[int, np.ndarray] = {}  # by worker: Σ weight · shape shapeᵀ / expected²
        self._sums: dict[int, np.ndarray] = {}  # by worker: Σ weight · shape · seconds / expected²
        self._parts: np.ndarray | None = None
        self._stale = False  # measurements have come of which no use was made so far

    @property
    def known(self) -> bool:
        """Whether anything was learned; before, seconds are in no unit."""
        self._settle()
        return self._parts is not None

    def seconds(self, worker: int, shape: Shape) -> float:
        """What a piece of work will take there; a worker not seen yet is as slow as the others are on average."""
        usual = self.anywhere(shape)
        return self.slowness.get(worker, 1.0) * usual

    def anywhere(self, shape: Shape) -> float:
        """The same on an average worker: what to sort by. Before anything was learned, the last of `shape`."""
        self._settle()
        return shape[-1] if self._parts is None else max(float(self._parts @ np.asarray(shape)), LEAST)

    def learn(self, worker: int, shape: Shape, seconds: float) -> None:
        """A measurement. A worker's first is left out: it also paid for what is done once."""
        if worker not in self._warm:
            self._warm.add(worker)
            return
        row = np.asarray(shape)
        expected = self.seconds(worker, shape) if worker in self._sums else max(seconds, LEAST)
        seconds = min(max(seconds, expected / SURPRISE), expected * SURPRISE)
        kept = self._products.get(worker, 0.0), self._sums.get(worker, 0.0)
        self._products[worker] = KEPT * kept[0] + np.outer(row, row) / expected**2
        self._sums[worker] = KEPT * kept[1] + row * seconds / expected**2
        self._stale = True

    def _settle(self) -> None:
        """Make use of what was measured since the last time that anybody asked."""
        if not self._stale or not self._sums:
            return
        products, sums = np.stack(list(self._products.values())), np.stack(list(self._sums.values()))
        slow = np.array([self.slowness.get(worker, 1.0) for worker in self._sums])
        for _ in range(TURNS):
            parts = _non_negative(np.einsum("w,wij->ij", slow**2, products), slow @ sums)
            slow = np.maximum(sums @ parts / (products @ parts @ parts), LEAST)
            scale = slow.mean()
            slow, parts = slow / scale, parts * scale
        self.slowness, self._parts = dict(zip(self._sums, slow.tolist(), strict=True)), parts
        self._stale = False

    def doubt(self, workers: Iterable[int]) -> None:
        """Workers that got no work are thought of as less unlike the others, so that they get some in the end."""
        self._settle()
        for worker in workers:
            if worker in self.slowness:
                average = self._products[worker] @ self._parts
                self._sums[worker] = self._sums[worker] + DOUBT * (average - self._sums[worker])
                self.slowness[worker] += DOUBT * (1.0 - self.slowness[worker])

    def forget(self, worker: int) -> None:
        """Another worker is in its place."""
        for known in (self.slowness, self._products, self._sums):
            known.pop(worker, None)
        self._warm.discard(worker)


def _non_negative(products: np.ndarray, sums: np.ndarray) -> np.ndarray:
    """Least squares whose parts are not below zero: a part that would be is left out, the lowest first."""
    count = len(sums)
    diagonal = products.diagonal()
    products.flat[:: count + 1] = np.where(diagonal > 0.0, diagonal * (1.0 + PRIOR), 1.0)
    found = np.linalg.solve(products, sums)
    kept = list(range(count))
    while found.min() < 0.0:
        kept.remove(int(found.argmin()))
        found = np.zeros(count)
        found[kept] = np.linalg.solve(products[np.ix_(kept, kept)], sums[kept])
    return found


def sent_now(
    waiting: Iterable[int], takers: Collection[int], ready: Mapping[int, float], seconds: Callable[[int, int], float]
) -> dict[int, int]:
    """Which work each taker gets now, by worker: each piece goes to who would end it first.

    List scheduling by earliest finish (Graham 1969; for unlike workers Ibarra and Kim 1977): `waiting` in the order in
    which it is dealt, longest first; `ready`: in how many seconds those at work will be free; `seconds(worker, work)`.
    A piece that a worker would end first that takes no more now waits for it, so a taker may get nothing.
    """
    free = {**dict.fromkeys(takers, 0.0), **ready}
    found: dict[int, int] = {}
    for work in waiting:
        if len(found) == len(takers):
            break
        ends = {worker: since + seconds(worker, work) for worker, since in free.items()}
        first = min(ends, key=lambda worker: (ends[worker], worker not in takers, worker))
        if first in takers and first not in found:
            found[first] = work
        free[first] = ends[first]
    return found


def remaining(expected: float, elapsed: float) -> float:
    """Seconds until a worker is free; what lasts longer than was expected will last as much longer again."""
    return abs(expected - elapsed) if math.isfinite(expected) else math.inf
