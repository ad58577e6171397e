"""A round's cohorts taken in one after the other, as they are trained: one mean per part at the end."""

from __future__ import annotations

import math

import torch

from simfl.aggregation.tree import TreeReducer
from simfl.protocol import AggregatedUpdates, Weights
from simfl.timing import timed
from simfl.training.cohort import CohortResult
from simfl.training.context import PhaseContext


class RoundAggregator:
    """What the cohorts returned so far.

    The cohorts' sums are nodes of one binary tree over the round's positions, so their total does not depend on who
    trained what. They are added while other cohorts are still trained, and not kept.
    """

    def __init__(self, stage: PhaseContext) -> None:
        self.stage = stage
        self.results: list[CohortResult] = []  # without their sums
        self._folds: dict[str, TreeReducer] = {}
        self._gathered: dict[str, list[Weights]] = {}
        self._positions = 0

    @timed("sum")
    def take(self, result: CohortResult) -> None:
        """The next cohort, in the order of the round."""
        for part in result.sums:  # in their order, which that of a set is not
            if part not in self._folds:
                self._folds[part] = TreeReducer(empty=self._positions)
        for part, fold in self._folds.items():
            fold.push(result.sums.pop(part, None), result.size)
        for part, uploads in result.gathered.items():
            self._gathered.setdefault(part, []).extend(uploads)
        self._positions += result.size
        self.results.append(result)

    @timed("sum")
    def mean(self) -> AggregatedUpdates | None:
        """One mean per part; None if nobody came back or nobody has weight."""
        rows = [row for result in self.results for row in result.clients]
        weight = math.fsum(row["weight"] for row in rows)
        if weight == 0.0:
            return None
        parts: dict[str, Weights] = {}
        for part, fold in self._folds.items():
            total = fold.total()
            assert total is not None
            divisor = float(len(rows)) if self.stage.phase.algorithm.reduce.get(part) == "clients" else weight
            means = torch._foreach_div(list(total.values()), divisor) if total else []
            parts[part] = dict(zip(total, means, strict=True))
        return AggregatedUpdates(parts, self._gathered, self.stage.num_clients, len(rows), weight)
