"""Learned durations of tasks on each worker, and the assignment of tasks to workers that finishes early.

The model is kept in memory only and does not influence results: a resumed run learns again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping

import numpy as np

Shape = tuple[float, ...]  # quantities that the duration of a task grows with: calls (1), clients, local steps

DECAY = 0.9  # weight of a worker's earlier measurements relative to a new one
MAX_RATIO = 4.0  # a measurement counts as at most so many times slower or faster than expected
IDLE_DECAY = 0.3  # step of an idle worker's estimate towards the mean, each time it gets no task
MIN_SECONDS = 1e-6  # of any task
RIDGE = 1e-4  # relative ridge: parts of the cost that no measurement tells apart shrink to zero
ITERATIONS = 3  # of fitting the parts, then the slowness of each worker; each fit starts from the last one


class CostModel:
    """Seconds of one kind of task: cost parts common to all workers, times the slowness of each worker.

    seconds(worker, shape) = slowness[worker] · Σ part · shape: least squares of relative errors, with exponentially
    decaying weights of earlier measurements. Parts are not negative, and the mean slowness of the workers is 1.
    """

    def __init__(self) -> None:
        self.slowness: dict[int, float] = {}
        self._warm: set[int] = set()
        self._products: dict[int, np.ndarray] = {}  # by worker: Σ weight · shape shapeᵀ / expected²
        self._sums: dict[int, np.ndarray] = {}  # by worker: Σ weight · shape · seconds / expected²
        self._parts: np.ndarray | None = None
        self._stale = False  # there are measurements since the last fit

    @property
    def fitted(self) -> bool:
        """Return whether anything was learned; until then, seconds have no unit."""
        self._fit()
        return self._parts is not None

    def seconds(self, worker: int, shape: Shape) -> float:
        """Return the expected duration on a worker; one without measurements counts as average."""
        mean = self.mean_seconds(shape)
        return self.slowness.get(worker, 1.0) * mean

    def mean_seconds(self, shape: Shape) -> float:
        """Return the expected duration on an average worker; before the first fit, the last entry of `shape`."""
        self._fit()
        return shape[-1] if self._parts is None else max(float(self._parts @ np.asarray(shape)), MIN_SECONDS)

    def observe(self, worker: int, shape: Shape, seconds: float) -> None:
        """Add a measurement. A worker's first one is ignored, since it includes one-time work."""
        if worker not in self._warm:
            self._warm.add(worker)
            return
        row = np.asarray(shape)
        expected = self.seconds(worker, shape) if worker in self._sums else max(seconds, MIN_SECONDS)
        seconds = min(max(seconds, expected / MAX_RATIO), expected * MAX_RATIO)
        earlier = self._products.get(worker, 0.0), self._sums.get(worker, 0.0)
        self._products[worker] = DECAY * earlier[0] + np.outer(row, row) / expected**2
        self._sums[worker] = DECAY * earlier[1] + row * seconds / expected**2
        self._stale = True

    def _fit(self) -> None:
        """Fit parts and slowness to the measurements, if there are new ones."""
        if not self._stale or not self._sums:
            return
        products, sums = np.stack(list(self._products.values())), np.stack(list(self._sums.values()))
        slowness = np.array([self.slowness.get(worker, 1.0) for worker in self._sums])
        for _ in range(ITERATIONS):
            parts = _non_negative(np.einsum("w,wij->ij", slowness**2, products), slowness @ sums)
            slowness = np.maximum(sums @ parts / (products @ parts @ parts), MIN_SECONDS)
            scale = slowness.mean()
            slowness, parts = slowness / scale, parts * scale
        self.slowness, self._parts = dict(zip(self._sums, slowness.tolist(), strict=True)), parts
        self._stale = False

    def decay(self, idle: Iterable[int]) -> None:
        """Decay idle workers' estimates towards the mean, so that they eventually get tasks again."""
        self._fit()
        for worker in idle:
            if worker in self.slowness:
                mean = self._products[worker] @ self._parts
                self._sums[worker] = self._sums[worker] + IDLE_DECAY * (mean - self._sums[worker])
                self.slowness[worker] += IDLE_DECAY * (1.0 - self.slowness[worker])

    def forget(self, worker: int) -> None:
        """Drop the measurements of a worker that was replaced."""
        for known in (self.slowness, self._products, self._sums):
            known.pop(worker, None)
        self._warm.discard(worker)


def _non_negative(products: np.ndarray, sums: np.ndarray) -> np.ndarray:
    """Solve least squares with non-negative parts: drop the most negative part and solve again."""
    count = len(sums)
    diagonal = products.diagonal()
    products.flat[:: count + 1] = np.where(diagonal > 0.0, diagonal * (1.0 + RIDGE), 1.0)
    parts = np.linalg.solve(products, sums)
    kept = list(range(count))
    while parts.min() < 0.0:
        kept.remove(int(parts.argmin()))
        parts = np.zeros(count)
        parts[kept] = np.linalg.solve(products[np.ix_(kept, kept)], sums[kept])
    return parts


def assign(
    waiting: Iterable[int], takers: Collection[int], busy: Mapping[int, float], seconds: Callable[[int, int], float]
) -> dict[int, int]:
    """Return the task that each taker gets now, by worker: each task goes to the worker that would finish it first.

    List scheduling by earliest finish (Graham 1969; for unlike workers Ibarra and Kim 1977). A task that a busy worker
    would finish first waits for that worker, so a taker may get none.

    Args:
        waiting: Tasks in the order of dispatch, longest first.
        takers: Workers that can take a task now.
        busy: Seconds until each busy worker is free.
        seconds: Expected duration of (worker, task).
    """
    free_in = {**dict.fromkeys(takers, 0.0), **busy}
    assigned: dict[int, int] = {}
    for task in waiting:
        if len(assigned) == len(takers):
            break
        ends = {worker: start + seconds(worker, task) for worker, start in free_in.items()}
        first = min(ends, key=lambda worker: (ends[worker], worker not in takers, worker))
        if first in takers and first not in assigned:
            assigned[first] = task
        free_in[first] = ends[first]
    return assigned


def remaining(expected: float, elapsed: float) -> float:
    """Return the seconds until a worker is free; a task that takes longer than expected lasts as much longer again."""
    return abs(expected - elapsed) if math.isfinite(expected) else math.inf
