"""Privacy loss distributions of sampled Gaussians, composed by Fourier transform (Koskela et al. 2020).

    L  loss log P(z)/Q(z) of an outcome z ~ P          delta(epsilon) = E[max(0, 1 − exp(epsilon − L))]
    q  sampling rate; with the unit (1 − q)·N(0, sigma²) + q·N(1, sigma²), without it N(0, sigma²)

Losses are moved to a grid such that delta becomes larger at every epsilon (`_masses`), and losses above the grid count
as infinite. The result is an upper bound, both for adding and for removing the unit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

FAR = 9.0  # standard deviations beyond which an outcome counts as infinite loss; its probability is 1e-19
WRAPPED = 1e-14  # bound on the probability that the circular convolution may misplace
MAX_POINTS = 1 << 20
STEP = 1e-4  # of the grid, as in dp-accounting
FINENESS = 0.02  # largest step over the root mean square of a loss: the grid adds at most 1e-4 of its square
ROUNDING = 4e-15  # larger than what rounding may take from the mass of an upper end, times the step
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
    up, down, finest = np.zeros_like(powers), np.zeros_like(powers), STEP
    for term in terms:
        low, high = _range(term, removed)
        step = max((high - low) / (1 << 13), 1e-12)
        coarse = _Grid(step, math.floor(low / step), math.ceil((high - low) / step) + 2)
        mass = _masses(term, removed, coarse)
        losses = step * (coarse.first + np.arange(coarse.points))
        finest = min(finest, FINENESS * math.sqrt(float((mass * losses**2).sum())))
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
    step = max((high - low) / (MAX_POINTS - 4), finest)
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
    """Return the mass of each loss l of the grid; losses below the grid count as its lowest.

    The probability of losses between two points of the grid is divided between both, so that it is kept under P and
    under Q (Doroshenko et al. 2022, who call it connecting the dots). This gives an upper bound on delta at every
    epsilon, since delta is convex in exp(epsilon).
    """
    losses = grid.step * (grid.first + np.arange(grid.points))
    single, mixed = _intervals(losses, term, removed)
    mass, other = (mixed, single) if removed else (single, mixed)
    with np.errstate(over="ignore", invalid="ignore"):
        up = mass[1:] - other[1:] * np.exp(losses[:-1])  # the part of each interval that its upper end takes
    up = np.nan_to_num(up / -math.expm1(-grid.step), nan=np.inf) + ROUNDING / grid.step
    up = np.concatenate([mass[:1], np.clip(up, 0.0, mass[1:])])
    found: np.ndarray = up
    found[:-1] += mass[1:] - up[1:]
    return found


def _intervals(losses: np.ndarray, term: Term, removed: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the probability of a loss in (l before, l] for each l, without and with the unit.

    The loss increases with the outcome z if P has the unit, and decreases otherwise.
    """
    exponents = losses if removed else -losses
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        if term.q >= 1:
            logarithm = exponents
        else:
            inner = np.maximum(-np.expm1(math.log1p(-term.q) - exponents), 0.0)
            logarithm = np.where(inner > 0, exponents + np.log(inner), -np.inf) - math.log(term.q)
        z = term.sigma * logarithm + 0.5 / term.sigma  # in standard deviations
    ends, shift = (z, -1 / term.sigma) if removed else (-z, 1 / term.sigma)
    single = _normal_between(ends)
    return single, (1 - term.q) * single + term.q * _normal_between(ends + shift)


def _normal_between(ends: np.ndarray) -> np.ndarray:
    """Return the probability of a standard normal between each of these ascending ends and the one before."""
    from scipy.special import ndtr

    below, above = ndtr(ends), ndtr(-ends)  # both tails, so that small probabilities keep their digits
    found: np.ndarray = np.where(ends > 0, -np.diff(above, prepend=1.0), np.diff(below, prepend=0.0))
    return found


def _circular(mass: np.ndarray, grid: _Grid) -> np.ndarray:
    return np.roll(mass, grid.first)
