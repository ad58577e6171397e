"""What releases cost: (noise multiplier, sampling rate, steps) to epsilon, and back to the noise that a budget allows.

    sigma  noise multiplier     q  sampling rate     T  rounds     alpha  order of a Rényi divergence

The sampled Gaussian's divergences are opacus's (Mironov et al. 2019), and so is the conversion (Balle et al. 2020). The
series for fractional orders is Mironov's: the one that Tito et al. 2024 print as equation A8 lacks, in its second sum,
the exponent ((alpha − k)² − (alpha − k)) / 2 sigma² and the argument z1 − (alpha − k), and takes two logarithms of what
is one sum; as printed it diverges.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from simfl.privacy import pld

ORDERS = {
    "rdp": (*(1 + x / 10 for x in range(1, 100)), *range(12, 64)),  # of PFL-DocVQA's calculator
    "rdp_fine": (*(1 + x / 100 for x in range(1, 1000)), *range(11, 65), *range(72, 520, 8), 1024.0),
}
WHOLE = (*range(2, 11), *range(12, 64))  # orders that both have and that are quick; any orders give an upper bound
LEAST, MOST = 1e-2, 1e6  # noise multipliers among which one is sought


@dataclass(frozen=True)
class Event:
    """`steps` releases of a Gaussian over a Poisson sample, which take place with probability `visited`.

    Whether they take place may be seen, as when a client's other contributions give its visit away: it makes epsilon
    no smaller, only less likely to be spent.
    """

    noise_multiplier: float  # sigma: standard deviation over sensitivity
    sampling_rate: float  # q: probability that the protected unit takes part
    visited: float = 1.0  # probability of the whole
    steps: int = 1  # releases, one after the other


History = Sequence[tuple[Event, int]]  # each event, and how many times it took place


def epsilon(history: History, delta: float, accountant: str = "rdp") -> float:
    """What the releases of a history cost together, at this delta; infinity where one had no noise.

    `prv` knows no `visited`, and so takes it for certain: an upper bound.
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
    """The least epsilon that these orders give, and the order that gives it."""
    from opacus.accountants.analysis import rdp  # two seconds to import, and most runs promise nothing

    total = np.sum([times * np.array(divergences(event, orders)) for event, times in history], axis=0)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Optimal order is the")  # a bound still, if not the tightest
        spent, order = rdp.get_privacy_spent(orders=list(orders), rdp=list(total), delta=delta)
    return float(spent), float(order)


@lru_cache(maxsize=512)
def divergences(event: Event, orders: tuple[float, ...]) -> tuple[float, ...]:
    """The Rényi divergence of one event at each order."""
    from opacus.accountants.analysis import rdp

    found = rdp.compute_rdp(
        q=event.sampling_rate, noise_multiplier=event.noise_multiplier, steps=event.steps, orders=list(orders)
    )
    if event.visited < 1.0:  # E over the visit of exp((alpha − 1)·divergence), by joint convexity
        less = np.array(orders) - 1.0
        found = np.logaddexp(math.log1p(-event.visited), math.log(event.visited) + less * found) / less
    return tuple(float(value) for value in found)


def _prv(history: History, delta: float) -> float:
    """Opacus's numerical composition (Gopi et al. 2021), its upper end."""
    from opacus.accountants import PRVAccountant

    accountant = PRVAccountant()
    accountant.history = [(e.noise_multiplier, min(e.sampling_rate, 1.0), e.steps * n) for e, n in history]
    with np.errstate(divide="ignore"):  # it takes logarithms that it then leaves out
        return max(0.0, float(accountant.get_epsilon(delta)))


def _plain(event: Event) -> tuple[float, float, float, int]:
    return event.noise_multiplier, event.sampling_rate, event.visited, event.steps


def noise_multiplier(
    target: float, delta: float, histories: Callable[[float], Sequence[History]], accountant: str = "rdp"
) -> float:
    """The least sigma with which every history of `histories(sigma)` costs at most `target`, to 6 digits.

    The worst of several histories counts: units differ in how often they are sampled. Infinity if no sigma will do.
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
    """Where a falling function passes 0, from above: false position in the logarithm (Illinois). Infinity for never."""
    while (under := excess(high)) > 0:
        low, high = high, 2 * high
        if high > MOST:
            return math.inf
    while (over := excess(low)) <= 0 and low > LEAST:
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
