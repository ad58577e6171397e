"""BLT: buffered linear Toeplitz matrices (Dvijotham et al. 2024; McMahan, Xu and Zhang 2024, for participations).

    C[s + j, s] = Σ_i omega_i·theta_i^(j − 1) for j ≥ 1, and 1 for j = 0

Coefficients are not negative and do not increase, so the sensitivity is attained by participations in rounds 0, b, 2b,
… (Kalinin and Lampert 2024, arXiv 2405.13763, theorem 2). The noise of a round needs one vector per buffer, however
many rounds there are (McMahan, Xu and Zhang 2024, arXiv 2408.08868, algorithm 3):

    W[t] = Z[t] − Σ_i omega_i·S_i,     S_i ← theta_i·S_i + W[t]
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated

import numpy as np

from simfl.constraints import Constraint
from simfl.factorizations.base import Factor, Factorization, Participation, Workload, toeplitz, toeplitz_errors

Buffers = Annotated[int, Constraint("a whole number from 1 to 8", lambda n: 1 <= n <= 8)]
MAX_STEPS = 300  # of the optimizer, from each start
LIMIT = 12.0  # of the logits that are optimized


@dataclass(frozen=True)
class Blt(Factorization):
    """A Toeplitz matrix whose coefficients are sums of `buffers` exponentials, for any number of rounds."""

    buffers: Buffers = 3  # d: vectors of the size of the model that the server keeps

    def factor(self, participation: Participation, workload: Workload) -> BltFactor:
        """Return the optimized matrix."""
        return BltFactor(participation, *_optimized(participation, workload, self.buffers, self.loss))


class BltFactor(Factor):
    """The matrix of weights omega and decays theta, float64 [d] each."""

    def __init__(self, participation: Participation, weights: np.ndarray, decays: np.ndarray) -> None:
        """Store weights (positive, with a sum of at most 1) and decays (from 0 to 1)."""
        self.participation, self.weights, self.decays = participation, weights, decays

    @property
    def num_states(self) -> int:
        """The number of buffers."""
        return len(self.weights)

    @property
    def column_norm(self) -> float:
        """The norm of the first column, the longest one."""
        return float(np.linalg.norm(self.coefficients(self.participation.rounds)))

    def coefficients(self, rounds: int) -> np.ndarray:
        """Return the first column of C, float64 [rounds]."""
        powers = self.decays[:, None] ** np.arange(max(0, rounds - 1))
        return np.concatenate([[1.0], self.weights @ powers])

    def inverse_coefficients(self, rounds: int) -> np.ndarray:
        """Return the first column of C⁻¹, float64 [rounds].

        C⁻¹ is a BLT matrix too (McMahan and Pillutla 2025, arXiv 2504.21413; Dvijotham et al. 2024, arXiv 2404.16706).
        It has the buffers S ← (diag(theta) − 1·omegaᵀ)·S + Z[t], a matrix that is similar to a symmetric
        one.
        """
        roots = np.sqrt(self.weights)
        values, vectors = np.linalg.eigh(np.diag(self.decays) - np.outer(roots, roots))
        powers = values[:, None] ** np.arange(max(0, rounds - 1))
        return np.concatenate([[1.0], -((vectors.T @ roots) ** 2) @ powers])

    def sensitivity(self, rounds: int) -> float:
        """Return the norm of the sum of the columns 0, b, 2b, …, one for each participation."""
        gap, count = self.participation.separation, self.participation.first(rounds).participations
        single = self.coefficients(rounds)
        rows = np.concatenate([single, np.zeros(-rounds % gap)]).reshape(-1, gap)
        sums = np.cumsum(rows, axis=0)
        sums[count:] -= np.cumsum(rows, axis=0)[:-count]
        return float(np.linalg.norm(sums.reshape(-1)[:rounds]))

    def matrix(self) -> np.ndarray:
        """Return C, float64 [T, T]."""
        return toeplitz(self.coefficients(self.participation.rounds))

    def squared_errors(self, workload: Workload) -> np.ndarray:
        """Return the squared norm of each row of A·C⁻¹, float64 [T]."""
        return toeplitz_errors(self.inverse_coefficients(len(workload.rates)), workload)

    def advance(self, round: int, values: np.ndarray, states: np.ndarray) -> None:
        """Solve C·W = Z for a row of W, with one state per buffer."""
        for weight, state in zip(self.weights, states, strict=True):
            values -= weight * state
        for decay, state in zip(self.decays, states, strict=True):
            state *= decay
            state += values


@lru_cache(maxsize=16)
def _optimized(
    participation: Participation, workload: Workload, buffers: int, loss: str
) -> tuple[np.ndarray, np.ndarray]:
    """Return weights and decays with the smallest error at equal sensitivity, by L-BFGS from several starts."""
    from scipy.optimize import minimize  # 0.3 s to import, and most runs need none of it

    def objective(free: np.ndarray) -> float:
        factor = BltFactor(participation, *_parameters(free))
        errors = factor.squared_errors(workload)
        error = float(errors.mean() if loss == "mean" else errors.max())
        return math.log(error) + 2 * math.log(factor.sensitivity(participation.rounds))

    bounds = [(-LIMIT, LIMIT)] * (2 * buffers)
    runs = [
        minimize(objective, start, method="L-BFGS-B", bounds=bounds, options={"maxiter": MAX_STEPS})
        for start in _starts(participation.rounds, buffers)
    ]
    found = _parameters(min(runs, key=lambda run: float(run.fun)).x)
    for values in found:
        values.setflags(write=False)
    return found


def _parameters(free: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return weights with a sum below 1, and decays below 1, from logits [2d]: decays, shares, and the sum."""
    half = len(free) // 2
    logits = np.concatenate([[0.0], free[half:]])  # the first share is what is left of 1
    shares = np.exp(logits - logits.max())
    return shares[1:] / shares.sum(), 1 / (1 + np.exp(-free[:half]))


def _starts(rounds: int, buffers: int) -> list[np.ndarray]:
    """Return starts whose decays reach over spans from one round to all, and whose weights decrease with the span."""
    starts = []
    for longest in (float(max(2, rounds)), math.sqrt(max(4, rounds))):
        spans = longest ** (np.arange(1, buffers + 1) / buffers)
        starts.append(np.clip(np.concatenate([np.log(spans), -0.5 * np.log(spans)]), -LIMIT, LIMIT))
    return starts
