"""The contract of staleness functions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from simfl.asynchronous.staleness import Staleness

AGES = range(200)
DISTANCES = (0.0, 1e-3, 0.5, 1.0, 10.0, 1e6)


def check_staleness(function: Staleness) -> Iterator[str]:
    """Yield one line for each rule that a staleness function breaks."""
    ages = [_factor(function, age, 1.0, 1.0) for age in AGES]
    moved = [_factor(function, 1, distance, 1.0) for distance in DISTANCES]
    small = [_factor(function, 1, 1.0, 0.0), _factor(function, 0, 0.0, 0.0)]
    for factor in [*ages, *moved, *small]:
        if not (isinstance(factor, float) and math.isfinite(factor) and factor >= 0):
            yield f"a factor is {factor!r}; allowed: a finite float of at least 0"
            return
    if any(later > earlier for earlier, later in itertools.pairwise(ages)):
        yield "an update counts more than a less stale one"
    if any(later > earlier for earlier, later in itertools.pairwise(moved)):
        yield "an update counts more, the further the model has moved"


def _factor(function: Staleness, staleness: int, distance: float, norm: float) -> float:
    if function.needs_norms:
        return function.factor_of_norms(staleness, distance, norm)
    return function.factor(staleness)
