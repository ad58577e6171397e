"""Privacy loss distributions of sampled Gaussians, composed by Fourier transform (Koskela et al. 2020).

    L  loss log P(z)/Q(z) of an outcome z ~ P          delta(epsilon) = E[max(0, 1 − exp(epsilon − L))]
    q  sampling rate; with the unit (1 − q)·N(0, sigma²) + q·N(1, sigma²), without it N(0, sigma²)

Losses are rounded up to a grid, and losses above the grid count as infinite. The result is an upper bound, both for
adding and for removing the unit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

FAR = 9.0  # standard deviations beyond which an outcome counts as infinite loss; its probability is 1e-19
WRAPPED = 1e-14  # bound on the probability that the circular convolution may misplace
MAX_POINTS = 1 << 20
HUGE = 500.0  # a larger epsilon counts as infinite


class Term(NamedTuple):
    """An event that happens `times` times: with probability `client_rate`, `steps` sampled Gaussians."""

    sigma: float
    q: float
    client_rate: float
    steps: int
    times: int


class _Grid(NamedTuple):
    step: float
    first: int  # index of the lowest loss
    points: int


def epsilon(terms: Sequence[tuple[float, float, float, int, int]], delta: float) -> float:
    """Return the epsilon of all terms together; infinity if delta cannot be reached."""
    return max(_epsilon([Term(*t) for t in terms], delta, removed) for removed in (True, False))


def _epsilon(terms: Sequence[Term], delta: float, removed: bool) -> float:
    grid = _grid(terms, removed)
    spectrum, finite = np.ones(grid.points // 2 + 1, complex), 0.0
    for term in terms:
        mass = _masses(term, removed, grid)
        wave = (1 - term.client_rate) + term.client_rate * np.fft.rfft(_circular(mass, grid)) ** term.steps
        spectrum *= wave**term.times
        finite += term.times * math.log1p(term.client_rate * (float(mass.sum()) ** term.steps - 1))
    density = np.maximum(np.roll(np.fft.irfft(spectrum, grid.points), -grid.first), 0.0)
    return _solve(density, grid, delta, infinite=-math.expm1(min(0.0, finite)) + WRAPPED)


def _solve(density: np.ndarray, grid: _Grid, delta: float, infinite: float) -> float:
    """Return the smallest epsilon whose delta is at most the given one."""
    losses = grid.step * (grid.first + np.arange(grid.points))
    positive = losses > 0
    losses, density = losses[positive], density[positive]
    if infinite > delta or not len(losses):
        return math.inf if infinite > delta else 0.0
    above = np.cumsum(density[::-1])[::-1]  # P(L >= l)
    discounted = np.cumsum((density * np.exp(-losses))[::-1])[::-1]
    if infinite + above[0] - discounted[0] <= delta:
        return 0.0
    near = losses < HUGE
    at_losses = infinite + above[near] - np.exp(losses[near]) * discounted[near]  # delta if epsilon is this loss
    if not (at_losses <= delta).any():
        return math.inf
    index = int(
        np.argmax(at_losses <= delta)
    )  # the first that is small enough; between two losses the solution is exact
    excess = infinite + above[index] - delta
    return max(0.0, float(math.log(excess / discounted[index]))) if discounted[index] > 0 else float(losses[index])


def _grid(terms: Sequence[Term], removed: bool) -> _Grid:
    """Return a grid that holds all but WRAPPED of the probability of the sum, by Chernoff's bound on both sides."""
    powers = np.geomspace(1e-2, 1e3, 120)
    up, down = np.zeros_like(powers), np.zeros_like(powers)
    for term in terms:
        low, high = _range(term, removed)
        step = max((high - low) / (1 << 13), 1e-12)
        coarse = _Grid(step, math.floor(low / step), math.ceil((high - low) / step) + 2)
        mass = _masses(term, removed, coarse)
        losses = step * (coarse.first + np.arange(coarse.points))
        for total, sign in ((up, 1.0), (down, -1.0)):
            log_moment = np.array([_log_sum(mass, sign * power * losses) for power in powers])
            if term.client_rate < 1:
                log_moment = np.logaddexp(
                    math.log1p(-term.client_rate), math.log(term.client_rate) + term.steps * log_moment
                )
            total += term.times * (log_moment if term.client_rate < 1 else term.steps * log_moment)
    rest = math.log(2 / WRAPPED)
    high, low = float(np.min((up + rest) / powers)), -float(np.min((down + rest) / powers))
    high, low = max(high, 1e-6), min(low, -1e-6)
    steps = sum(term.steps * term.times for term in terms)
    step = max((high - low) / (MAX_POINTS - 4), min(1e-4, 1e-3 / steps))
    points = 1 << math.ceil(math.log2((high - low) / step + 4))
    return _Grid(step, math.floor(low / step), points)


def _log_sum(mass: np.ndarray, exponents: np.ndarray) -> float:
    top = float(exponents.max())
    return top + math.log(float((mass * np.exp(exponents - top)).sum()) + 1e-300)


def _range(term: Term, removed: bool) -> tuple[float, float]:
    """Return the range of losses of outcomes within FAR standard deviations of both means."""
    ends = [_loss(z, term) for z in (-FAR * term.sigma, 1 + FAR * term.sigma)]
    return (ends[0], ends[1]) if removed else (-ends[1], -ends[0])


def _loss(z: float, term: Term) -> float:
    exponent = (2 * z - 1) / (2 * term.sigma**2)
    if term.q >= 1:
        return exponent
    return float(np.logaddexp(math.log1p(-term.q), math.log(term.q) + exponent))


def _masses(term: Term, removed: bool, grid: _Grid) -> np.ndarray:
    """Return P(loss in (l − step, l]) for each l of the grid; losses below the grid count as its lowest."""
    losses = grid.step * (grid.first + np.arange(grid.points))
    return np.diff(_distribution(losses, term, removed), prepend=0.0)


def _distribution(losses: np.ndarray, term: Term, removed: bool) -> np.ndarray:
    """Return P(L <= l). The loss increases with z if P has the unit, and decreases otherwise."""
    exponents = losses if removed else -losses
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        if term.q >= 1:
            logarithm = exponents
        else:
            inner = np.maximum(-np.expm1(math.log1p(-term.q) - exponents), 0.0)
            logarithm = np.where(inner > 0, exponents + np.log(inner), -np.inf) - math.log(term.q)
        z = term.sigma * logarithm + 0.5 / term.sigma  # in standard deviations
    if removed:
        return (1 - term.q) * _normal(z) + term.q * _normal(z - 1 / term.sigma)
    return _normal(-z)


def _normal(z: np.ndarray) -> np.ndarray:
    from scipy.special import ndtr

    found: np.ndarray = ndtr(z)
    return found


def _circular(mass: np.ndarray, grid: _Grid) -> np.ndarray:
    return np.roll(mass, grid.first)
