"""Privacy accounting: epsilon from noise multiplier, sampling rate and steps, and the noise that a budget requires.

    sigma  noise multiplier     q  sampling rate     T  rounds     alpha  order of a Rényi divergence

Divergences of the sampled Gaussian (Mironov et al. 2019) and the conversion to epsilon (Balle et al. 2020) come from
opacus. For fractional orders, the series of Mironov et al. is used. Equation A8 of Tito et al. 2024 differs: its second
sum lacks the exponent ((alpha − k)² − (alpha − k)) / 2 sigma² and the argument z1 − (alpha − k), and it takes two
logarithms of what is one sum; as printed it diverges.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from simfl.privacy import pld
from simfl.privacy.discrete import DiscreteNoise

ORDERS = {
    "rdp": (*(1 + x / 10 for x in range(1, 100)), *range(12, 64)),  # as in PFL-DocVQA's calculator
    "rdp_fine": (*(1 + x / 100 for x in range(1, 1000)), *range(11, 65), *range(72, 520, 8), 1024.0),
}
WHOLE = (*range(2, 11), *range(12, 64))  # integer orders of both, which are fast; any orders give an upper bound
MIN_SIGMA, MAX_SIGMA = 1e-2, 1e6  # range of the search for a noise multiplier


@dataclass(frozen=True)
class Event:
    """`steps` releases of a Gaussian over a Poisson sample, which happen with probability `client_rate`.

    An observer may see whether they happen, because a client's other contributions can reveal that it was sampled. So
    `client_rate` does not make the privacy loss smaller, only less likely.
    """

    noise_multiplier: float  # sigma: standard deviation over sensitivity
    sampling_rate: float  # q: probability that the protected unit takes part
    client_rate: float = 1.0  # probability that the client is sampled, and the releases happen
    steps: int = 1  # consecutive releases
    discrete: DiscreteNoise | None = None  # integer noise of a sum without sampling; None: the Gaussian above


History = Sequence[tuple[Event, int]]  # each event, and how many times it happened


def epsilon(history: History, delta: float, accountant: str = "rdp") -> float:
    """Return the epsilon of all releases of a history at this delta; infinity if one had no noise.

    The accountant `prv` does not support `client_rate` and assumes 1, which gives an upper bound.
    """
    history = [(event, times) for event, times in history if times]
    if not history:
        return 0.0
    if any(event.noise_multiplier == 0.0 for event, _ in history):
        return math.inf
    if accountant == "pld":
        return pld.epsilon([(*_plain(event), times) for event, times in history], delta)
    if accountant == "prv":
        return _prv(history, delta)
    return max(0.0, _at_best_order(history, delta, ORDERS[accountant])[0])


def _at_best_order(history: History, delta: float, orders: tuple[float, ...]) -> tuple[float, float]:
    """Return the smallest epsilon over these orders, and the order that attains it."""
    from opacus.accountants.analysis import rdp  # takes 2 s to import, and most runs need no accounting

    total = np.sum([times * np.array(divergences(event, orders)) for event, times in history], axis=0)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Optimal order is the")  # still an upper bound
        spent, order = rdp.get_privacy_spent(orders=list(orders), rdp=list(total), delta=delta)
    return float(spent), float(order)


@lru_cache(maxsize=512)
def divergences(event: Event, orders: tuple[float, ...]) -> tuple[float, ...]:
    """Return the Rényi divergence of one event at each order."""
    from opacus.accountants.analysis import rdp

    if event.discrete is not None:
        assert event.sampling_rate == 1.0, "bounds of integer noise are those without sampling"
        found = event.steps * event.discrete.divergences(event.noise_multiplier, orders)
    else:
        found = rdp.compute_rdp(
            q=event.sampling_rate, noise_multiplier=event.noise_multiplier, steps=event.steps, orders=list(orders)
        )
    if event.client_rate < 1.0:  # E of exp((alpha − 1)·divergence), by joint convexity
        minus_one = np.array(orders) - 1.0
        found = (
            np.logaddexp(math.log1p(-event.client_rate), math.log(event.client_rate) + minus_one * found) / minus_one
        )
    return tuple(float(value) for value in found)


def _prv(history: History, delta: float) -> float:
    """Return the upper end of opacus's numerical composition (Gopi et al. 2021)."""
    from opacus.accountants import PRVAccountant

    accountant = PRVAccountant()
    accountant.history = [(e.noise_multiplier, min(e.sampling_rate, 1.0), e.steps * n) for e, n in history]
    with np.errstate(divide="ignore"):  # opacus takes logarithms of zero and discards them
        return max(0.0, float(accountant.get_epsilon(delta)))


def _plain(event: Event) -> tuple[float, float, float, int]:
    return event.noise_multiplier, event.sampling_rate, event.client_rate, event.steps


def noise_multiplier(
    target: float, delta: float, histories: Callable[[float], Sequence[History]], accountant: str = "rdp"
) -> float:
    """Return the smallest sigma with which every history has at most the target epsilon, to 6 digits.

    Args:
        target: The epsilon allowed.
        delta: The delta.
        histories: Returns the histories for a sigma. There are several because units differ in how often they are
            sampled; the worst one counts.
        accountant: `rdp`, `rdp_fine`, `prv` or `pld`.

    Returns:
        The noise multiplier; infinity if none is large enough.
    """

    def excess(cost: Callable[[History], float]) -> Callable[[float], float]:
        return lambda sigma: math.log(max(*map(cost, histories(sigma)), 1e-12) / target)

    if accountant not in ORDERS:
        return _root(excess(lambda history: epsilon(history, delta, accountant)), 0.5, 1.0, 1e-6)
    near = _root(excess(lambda history: _at_best_order(history, delta, WHOLE)[0]), 0.5, 1.0, 1e-3)
    if math.isinf(near):
        return near
    best = [_at_best_order(history, delta, WHOLE)[1] for history in histories(near)]
    close = tuple(x for x in ORDERS[accountant] if x in WHOLE or any(abs(x - order) < 1.5 for order in best))
    return _root(excess(lambda history: _at_best_order(history, delta, close)[0]), 0.98 * near, near, 1e-6)


def _root(excess: Callable[[float], float], low: float, high: float, precision: float) -> float:
    """Return the root of a decreasing function, from above, by false position in the logarithm (Illinois method).

    Infinity if there is no root.
    """
    while (under := excess(high)) > 0:
        low, high = high, 2 * high
        if high > MAX_SIGMA:
            return math.inf
    while (over := excess(low)) <= 0 and low > MIN_SIGMA:
        low, high, under = low / 2, low, over
    while high / low > 1 + precision and under < -1e-7:
        part = over / (over - under) if math.isfinite(over) else 0.5
        middle = low * (high / low) ** min(max(part, 1e-3), 1 - 1e-3)
        value = excess(middle)
        if value > 0:
            low, over, under = middle, value, under / 2
        else:
            high, under, over = middle, value, over / 2
    return high
