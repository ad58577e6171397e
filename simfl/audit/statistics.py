"""Statistics of attacks: confidence bounds of rates, lower bounds on epsilon, and areas under ROC curves.

    m  canaries     r  guesses     v  correct guesses     delta  as in (epsilon, delta)

`one_run_epsilon` is the bound of Steinke, Nasr and Jagielski (2023, theorem 3.1 and appendix D), which needs a single
run and no assumption on the mechanism. `gaussian_mu` is the bound of Nasr et al. (2023) for Gaussian differential
privacy (Dong, Roth and Su 2019), from the error rates of a test that is repeated independently.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr, ndtri
from scipy.stats import beta, binom

CONFIDENCE = 0.95
MAX_EPSILON = 200.0  # a larger lower bound is reported as this one
PRECISION = 1e-4  # of bounds that are found by bisection


@dataclass(frozen=True)
class Estimate:
    """A number with its confidence interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True)
class Roc:
    """The success of an attack that scores members and other units; a larger score speaks for membership.

    Attributes:
        members: Number of members.
        others: Number of other units.
        auc: Area under the ROC curve.
        true_positives: Rate of true positives at each rate of false positives; None where there are too few other
            units to measure a rate of false positives so low.
    """

    members: int
    others: int
    auc: Estimate
    true_positives: dict[float, Estimate | None]


def rate(successes: int, trials: int, confidence: float = CONFIDENCE) -> Estimate:
    """Return a rate with its two-sided interval of Clopper and Pearson (1934)."""
    tail = (1 - confidence) / 2
    low = float(beta.ppf(tail, successes, trials - successes + 1)) if successes else 0.0
    high = float(beta.ppf(1 - tail, successes + 1, trials - successes)) if successes < trials else 1.0
    return Estimate(successes / trials if trials else math.nan, low, high)


def one_run_p_value(num_canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """Return a bound on the probability of so many correct guesses under (epsilon, delta)-differential privacy."""
    accuracy = 1 / (1 + math.exp(-epsilon))
    beyond = float(binom.sf(correct - 1, guesses, accuracy))
    below = np.cumsum(binom.pmf(np.arange(correct - 1, -1, -1), guesses, accuracy))  # P(v > W >= v − i), i = 1, 2, …
    slack = float(np.max(below / np.arange(1, correct + 1))) if correct else 0.0
    return min(1.0, beyond + 2 * num_canaries * delta * slack)


def one_run_epsilon(
    num_canaries: int, guesses: int, correct: int, delta: float, confidence: float = CONFIDENCE
) -> float:
    """Return a lower bound on epsilon from guesses about the independent coins of canaries in one run; at least 0."""

    def refuted(epsilon: float) -> bool:
        return one_run_p_value(num_canaries, guesses, correct, epsilon, delta) < 1 - confidence

    return largest(refuted, MAX_EPSILON)


def gaussian_mu(
    false_positives: int, negatives: int, false_negatives: int, positives: int, confidence: float = CONFIDENCE
) -> float:
    """Return a lower bound on mu of Gaussian differential privacy from the errors of independent tests; at least 0."""
    if not negatives or not positives:
        return 0.0
    # each upper limit is exceeded with half of the remaining probability
    errors = (
        rate(false_positives, negatives, confidence).high,
        rate(false_negatives, positives, confidence).high,
    )
    return max(0.0, float(-ndtri(errors[0]) - ndtri(errors[1])))


def gaussian_delta(mu: float, epsilon: float) -> float:
    """Return delta of a mu-GDP mechanism at this epsilon (Dong, Roth and Su 2019, corollary 2.13)."""
    if mu == 0.0:
        return 0.0
    return float(ndtr(mu / 2 - epsilon / mu) - math.exp(epsilon) * ndtr(-mu / 2 - epsilon / mu))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Return epsilon of a mu-GDP mechanism at this delta."""
    return largest(lambda epsilon: gaussian_delta(mu, epsilon) > delta, MAX_EPSILON)


def largest(holds: Callable[[float], bool], limit: float) -> float:
    """Return the largest number between 0 and `limit` at which a condition holds that only holds below it."""
    if not holds(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while high < limit and holds(high):
        low, high = high, 2 * high
    high = min(high, limit)
    while high - low > PRECISION:
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def roc(members: np.ndarray, others: np.ndarray, rates: tuple[float, ...] = (0.01, 0.001)) -> Roc:
    """Return the success of an attack from the scores of members and of other units, float64."""
    return Roc(
        len(members),
        len(others),
        auc_interval(auc(members, others), len(members), len(others)),
        {one: true_positives(members, others, one) for one in rates},
    )


def auc(members: np.ndarray, others: np.ndarray) -> float:
    """Return the probability that a member scores higher than another unit; half for ties."""
    ordered = np.sort(others)
    lower, not_higher = (np.searchsorted(ordered, members, side) for side in ("left", "right"))
    return float((lower + not_higher).mean() / (2 * len(others)))


def auc_interval(value: float, members: int, others: int, confidence: float = CONFIDENCE) -> Estimate:
    """Return an area under the ROC curve with the score interval of Newcombe (2006, method 5), for independent units.

    Its limits are the areas from which the value is z standard errors away, with the variance of Hanley and McNeil
    (1982) at the limit. It stays within [0, 1] and is not empty where the value is 1.
    """
    mean_size, z = (members + others) / 2, float(ndtri((1 + confidence) / 2))

    def far(area: float) -> bool:
        spread = 2 * mean_size - 1 - (3 * mean_size - 3) / ((2 - area) * (1 + area))
        return abs(value - area) > z * math.sqrt(max(0.0, area * (1 - area) * spread / (members * others)))

    low = value - largest(lambda step: value - step > 0 and not far(value - step), 1.0) if value > 0 else 0.0
    high = value + largest(lambda step: value + step < 1 and not far(value + step), 1.0) if value < 1 else 1.0
    return Estimate(value, max(0.0, low), min(1.0, high))


def true_positives(members: np.ndarray, others: np.ndarray, false_positive_rate: float) -> Estimate | None:
    """Return the rate of true positives at a rate of false positives; None with fewer others than resolve it."""
    allowed = math.floor(false_positive_rate * len(others) + 1e-9)
    if not allowed:
        return None
    threshold = np.sort(others)[len(others) - allowed - 1] if allowed < len(others) else -math.inf
    return rate(int((members > threshold).sum()), len(members))
