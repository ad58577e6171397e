"""Integer noise: the discrete Gaussian and the Skellam distribution.

The discrete Gaussian is sampled exactly (Canonne, Kamath, Steinke 2020, algorithm 3). A Bernoulli draw with probability
exp(−x) compares a uniform number, whose bits are drawn when they are needed, with exp(−x): the first 53 bits decide
unless they are within the rounding error of exp(−x), where exact decimals and further bits do.

A Skellam variable of variance v is the difference of two Poisson variables of mean v / 2 (Agarwal, Kairouz, Liu 2021);
these come from numpy, whose sampler computes in floating point.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np

UNDECIDED = 2.0**-48  # distance within which 53 bits of a uniform number do not decide
DIGITS = 80  # of exact comparisons, against 64 further bits each


def discrete_gaussian(generator: np.random.Generator, variance: int, count: int) -> np.ndarray:
    """Return independent draws of the discrete Gaussian with this parameter, int64 [count].

    Args:
        generator: The source of uniform integers.
        variance: sigma²: P(x) is proportional to exp(−x² / (2·sigma²)); a whole number of at least 1.
        count: Number of draws.
    """
    scale = int(np.sqrt(float(variance))) + 1
    return _until_accepted(count, lambda n: _gaussian_proposals(generator, variance, scale, n))


def skellam(generator: np.random.Generator, variance: float, count: int) -> np.ndarray:
    """Return independent draws of the symmetric Skellam distribution with this variance, int64 [count]."""
    found: np.ndarray = generator.poisson(variance / 2, count) - generator.poisson(variance / 2, count)
    return found


def _gaussian_proposals(generator: np.random.Generator, variance: int, scale: int, n: int) -> np.ndarray:
    """Return draws of a discrete Laplace variable that the Gaussian accepts; about three of four."""
    values = _until_accepted(n, lambda k: _laplace_proposals(generator, scale, k))
    distances = np.abs(values) - variance / scale

    def exact(k: int) -> Fraction:
        return (abs(int(values[k])) - Fraction(variance, scale)) ** 2 / (2 * variance)

    return values[_decays(generator, distances**2 / (2 * variance), exact)]


def _laplace_proposals(generator: np.random.Generator, scale: int, n: int) -> np.ndarray:
    """Return draws of the discrete Laplace distribution P(x) ~ exp(−|x| / scale), fewer than n."""
    all_low = generator.integers(0, scale, n)
    low = all_low[_decays(generator, all_low / scale, lambda k: Fraction(int(all_low[k]), scale))]
    high = np.zeros(len(low), np.int64)
    going = np.arange(len(low))
    while len(going):  # the number of draws of exp(−1) before the first failure
        going = going[_decays(generator, np.ones(len(going)), lambda k: Fraction(1))]
        high[going] += 1
    magnitude, negative = low + scale * high, generator.integers(0, 2, len(low)).astype(bool)
    kept = ~(negative & (magnitude == 0))
    found: np.ndarray = np.where(negative, -magnitude, magnitude)[kept]
    return found


def _decays(generator: np.random.Generator, x: np.ndarray, exact: Callable[[int], Fraction]) -> np.ndarray:
    """Return independent Bernoulli draws with probability exp(−x), bool [n]; `exact` returns x[k] as a fraction."""
    bits = generator.integers(0, 1 << 53, len(x))
    uniform, limit = bits * 2.0**-53, np.exp(-x)
    found: np.ndarray = uniform < limit
    for k in np.flatnonzero(np.abs(uniform - limit) < UNDECIDED).tolist():
        found[k] = _decays_exactly(generator, int(bits[k]), exact(k))
    return found


def _decays_exactly(generator: np.random.Generator, bits: int, x: Fraction) -> bool:
    """Return whether a uniform number with these first 53 bits, and further ones, is below exp(−x)."""
    size = 53
    with localcontext() as context:
        context.prec = DIGITS
        limit = (-Decimal(x.numerator) / Decimal(x.denominator)).exp()
        while True:
            unit = Decimal(2) ** -size
            if (bits + 1) * unit <= limit:
                return True
            if bits * unit >= limit:
                return False
            bits, size = bits << 32 | int(generator.integers(0, 1 << 32)), size + 32


def _until_accepted(count: int, propose: Callable[[int], np.ndarray]) -> np.ndarray:
    """Return `count` draws of a function that may return fewer than it is asked for."""
    found, total = list[np.ndarray](), 0
    while total < count:
        found.append(propose(count - total + (count - total) // 2 + 8))
        total += len(found[-1])
    return np.concatenate(found)[:count] if found else np.zeros(0, np.int64)
