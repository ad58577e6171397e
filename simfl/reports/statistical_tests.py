"""Tests of differences between two settings, and the correction for their number.

Both the seed of a run and its examples are drawn by chance, and seeds may share examples. The standard error of a
difference is therefore that of a hierarchical bootstrap (Davison and Hinkley 1997, section 3.8; Owen 2007): a draw
takes seeds and, for all seeds alike, examples. It has a closed form in the limit of many draws. Resampling S seeds
makes the variance too small by (S − 1)/S, which is corrected; it counts the chance of single examples more than once,
so it is rather too large. Percentiles would be far too narrow with few seeds (three equal signs would suffice), so the
probability is that of Student's t with S − 1 degrees of freedom. `benchmarks/false_alarms.py` measures how often
settings that do not differ are found to differ.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

SIGNIFICANCE_LEVEL = 0.05  # a difference with a smaller corrected p is marked


@dataclass(frozen=True)
class Difference:
    """The difference of the means of two settings over the same seeds and examples."""

    mean: float  # b − a
    error: float  # standard error over seeds and examples
    p: float  # two-sided
    seeds: int
    examples: int  # that any seed has


def hierarchical_bootstrap(differences: np.ndarray, weights: np.ndarray | None = None) -> Difference:
    """Test whether the mean of differences between two settings is zero, on other seeds and other examples.

    With D the means of the S seeds, and v and c the mean variance and covariance of these means when examples are
    resampled, draws of seeds and examples have the variance ((S − 1)·var(D) + (2S − 1)·v + (S − 1)²·c) / S².

    Args:
        differences: Scores of one setting minus those of the other, float64 [S, N], S > 1; NaN where a seed did not
            evaluate an example.
        weights: Weights of the examples in the mean of a seed [S, N]; None: equal ones.
    """
    (num_seeds, num_examples), known = differences.shape, ~np.isnan(differences)
    share = known * (1.0 if weights is None else weights)
    share = share / share.sum(1, keepdims=True)
    values = np.where(known, differences, 0.0)
    means = (share * values).sum(1)
    parts = share * (values - means[:, None])  # of an example in the bootstrap's deviation of a seed
    variance = float((parts**2).sum()) / num_seeds
    covariance = (float((parts.sum(0) ** 2).sum()) / num_seeds - variance) / (num_seeds - 1)
    drawn = (
        (num_seeds - 1) * float(means.var(ddof=1)) + (2 * num_seeds - 1) * variance + (num_seeds - 1) ** 2 * covariance
    ) / num_seeds**2
    mean, error = float(means.mean()), math.sqrt(max(0.0, drawn) * num_seeds / (num_seeds - 1))
    return Difference(mean, error, student_p(_quotient(mean, error), num_seeds - 1), num_seeds, num_examples)


def _quotient(mean: float, error: float) -> float:
    """Return mean / error. An error of rounding alone counts as none."""
    if error > 1e-12 * abs(mean):
        return mean / error
    return math.inf if mean else 0.0


def student_p(t: float, degrees: int) -> float:
    """Return the probability that Student's t with this many degrees of freedom is at least |t| from zero.

    Abramowitz and Stegun 1972, 26.7.3 and 26.7.4.
    """
    angle = math.atan2(abs(t), math.sqrt(degrees))
    term = math.cos(angle) if degrees % 2 else 1.0
    series, first = 0.0, 3 if degrees % 2 else 2
    for k in range(first, degrees + 1, 2):
        series += term
        term *= math.cos(angle) ** 2 * (k - 1) / k
    inside = series * math.sin(angle)
    inside = 2 / math.pi * (angle + inside) if degrees % 2 else inside
    return min(1.0, max(0.0, 1.0 - inside))


def student_quantile(p: float, degrees: int) -> float:
    """Return the t whose `student_p` is p, by bisection."""
    low, high = 0.0, 1.0
    while student_p(high, degrees) > p:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if student_p(middle, degrees) > p else (low, middle)
    return high


def holm(ps: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number (Holm 1979): the chance of any false alarm among them is bounded."""
    order, corrected, highest = sorted(range(len(ps)), key=ps.__getitem__), [0.0] * len(ps), 0.0
    for rank, index in enumerate(order):
        highest = max(highest, min(1.0, (len(ps) - rank) * ps[index]))
        corrected[index] = highest
    return corrected
