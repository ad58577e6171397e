"""Privacy of sums of integer noise, as published, in the integer domain of secure aggregation.

    L  clip norm in steps of the fixed-point grid     d  coordinates     n  clients whose noise is in the sum
    v  variance of the sum's noise                    D2, D1  norms of the largest change after rounding

Conditional randomized rounding keeps D2² ≤ min(L² + d/4 + √(2 ln(1/β))·(L + √d/2), (L + √d)²) (Kairouz, Liu, Steinke
2021, proposition 22), and integer vectors have D1 ≤ D2·min(√d, D2).

Discrete Gaussian, whose sum is only close to one (there, equation 17), with τ = 10·Σ_{k<n} exp(−2π²·(v/n)·k/(k+1)):
RDP(α) ≤ min(α·D2²/(2v) + τ·d, α/2·(D2/√v + τ·√d)²).

Skellam, whose sum is one (Agarwal, Kairouz, Liu 2021, theorem 3.5), for whole orders α:
RDP(α) ≤ α·D2²/(2v) + min(((2α − 1)·D2² + 6·D1)/(4v²), 3·D1/(2v)).
Between two whole orders, (α − 1)·RDP(α) is below its chord, being convex.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from simfl.experiment import Phase, Privacy, SecureAggregation
from simfl.sampling import num_sampled

BETA = math.exp(-0.5)  # probability that a rounded vector may be rejected, so that √(2 ln(1/β)) = 1
FAILURE = 1e-9  # probability per round with which a sum may exceed its modulus


@dataclass(frozen=True)
class DiscreteNoise:
    """Integer noise of a sum, all but its variance.

    Attributes:
        mechanism: `discrete_gaussian` or `skellam`.
        levels: L, the clip norm in steps of the grid.
        dimension: d, the number of coordinates, padded to a power of two.
        survivors: n, the fewest clients whose noise is in a released sum. Each adds a share of 1/n.
    """

    mechanism: str
    levels: int
    dimension: int
    survivors: int

    @property
    def sensitivity(self) -> float:
        """D2: the largest norm of a rounded vector."""
        return rounded_norm(self.levels, self.dimension)

    def variance(self, sigma: float) -> float:
        """Return v, the variance of the noise of n clients, for the noise multiplier sigma of the clip norm."""
        return (sigma * self.levels) ** 2

    def share(self, sigma: float) -> float:
        """Return the variance of one client's noise; a whole number for the discrete Gaussian."""
        share = self.variance(sigma) / self.survivors
        return float(math.ceil(share)) if self.mechanism == "discrete_gaussian" else share

    def divergences(self, sigma: float, orders: tuple[float, ...]) -> np.ndarray:
        """Return the Rényi divergence at each order, each above 1."""
        alphas, variance, change = np.array(orders), self.variance(sigma), self.sensitivity
        gaussian = alphas * change**2 / (2 * variance)
        if self.mechanism == "discrete_gaussian":
            tau = sum_gap(variance / self.survivors, self.survivors)
            spread = alphas / 2 * (change / math.sqrt(variance) + tau * math.sqrt(self.dimension)) ** 2
            return np.minimum(gaussian + tau * self.dimension, spread)
        low, high, part = np.floor(alphas), np.ceil(alphas), alphas % 1
        chord = (1 - part) * (low - 1) * self._skellam(variance, low) + part * (high - 1) * self._skellam(
            variance, high
        )
        found: np.ndarray = chord / (alphas - 1)
        return found

    def _skellam(self, variance: float, alphas: np.ndarray) -> np.ndarray:
        """Return the divergence of Skellam noise at whole orders."""
        change = self.sensitivity
        first = change * min(math.sqrt(self.dimension), change)
        rest = ((2 * alphas - 1) * change**2 + 6 * first) / (4 * variance**2)
        found: np.ndarray = alphas * change**2 / (2 * variance) + np.minimum(rest, 3 * first / (2 * variance))
        return found

    def largest_sum(self, sigma: float, clients: int) -> float:
        """Return a bound on the coordinates of the sum of this many clients, which fails with probability `FAILURE`.

        A rotated sum of norm n·L is sub-Gaussian in each coordinate; rounding changes it by less than 1 per client; the
        tail of the noise is bounded as Bernstein's inequality bounds that of Poisson variables.
        """
        tail = math.log(4 * self.dimension / FAILURE)
        signal = clients * self.levels * min(1.0, math.sqrt(2 * tail / self.dimension))
        variance = clients * self.share(sigma)
        noise = tail / 3 + math.sqrt(tail**2 / 9 + 2 * variance * tail)
        return signal + clients + noise


def discrete_noise(
    privacy: Privacy, secure: SecureAggregation, phase: Phase, num_clients: int, num_values: int
) -> DiscreteNoise:
    """Return the noise of a phase whose clients upload this many values."""
    survivors = fewest_survivors(secure, phase, num_clients)
    return DiscreteNoise(privacy.mechanism, secure.levels, padded(num_values), survivors)


def fewest_survivors(secure: SecureAggregation, phase: Phase, num_clients: int) -> int:
    """Return the fewest clients whose uploads, and so whose noise, are in a released sum, of at least `num_clients`.

    Where clients may drop out, or their number is random, only those that the protocol needs are sure to be in it.
    """
    count = num_sampled(phase, num_clients)
    if count is not None and secure.dropout == 0.0:
        return min(count, num_clients)
    return max(secure.min_survivors or 1, secure.threshold_for(min(count or num_clients, num_clients)))


def padded(count: int) -> int:
    """Return the smallest power of two of at least `count`, the length of a rotated vector."""
    return 1 << max(0, (count - 1).bit_length())


def rounded_norm(levels: float, dimension: int, beta: float = BETA) -> float:
    """Return the largest norm of a vector of norm `levels` after conditional randomized rounding."""
    root = math.sqrt(dimension)
    likely = levels**2 + dimension / 4 + math.sqrt(2 * math.log(1 / beta)) * (levels + root / 2)
    return min(math.sqrt(likely), levels + root)


def sum_gap(variance: float, count: int) -> float:
    """Return τ for a sum of `count` discrete Gaussians with this variance each."""
    k = np.arange(1, count)
    return 10 * float(np.exp(-2 * math.pi**2 * variance * k / (k + 1)).sum())
