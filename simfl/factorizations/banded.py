"""BandMF: a banded matrix with columns of norm 1 (Choquette-Choo et al. 2023, arXiv 2306.08153).

A band is no wider than the separation, so the columns of two rounds with the same client have no row in common: the
squared sensitivity is the sum of the squared norms of k columns (`most_rows`), and each participation is a release of
its own. Clients that are divided into bins, of which each round samples one at a rate, give the composition of
Poisson-sampled Gaussian mechanisms (theorem 5 of that paper; theorem 1 is its simpler form). The bin of a client does
not depend on the other clients, so adding one leaves theirs unchanged. Rows of the noise are those of its algorithm 9.

With `toeplitz`, diagonals are constant, so that only `bands` numbers are optimized, for any number of rounds (McKenna
2024, arXiv 2405.15913). The last columns are then shorter than 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np

from simfl.constraints import PositiveInt
from simfl.errors import ConfigError
from simfl.factorizations.base import Factor, Factorization, Participation, Workload, most_rows, toeplitz_errors

MAX_WORK = 2**24  # T²·bands: the optimization takes about 15 s
POWER = 12  # of the norm over rounds that stands for the largest error
OPTIONS = {"maxiter": 200, "ftol": 1e-9, "gtol": 1e-7}  # of the optimizer, which minimizes the logarithm


@dataclass(frozen=True)
class Banded(Factorization):
    """A banded lower triangular matrix with columns of norm 1; its noise depends on the last `bands` − 1 rounds."""

    bands: PositiveInt = 4  # diagonals that are not zero; at most the separation b
    toeplitz: bool = False  # true: constant diagonals, for thousands of rounds

    amplifies: ClassVar[bool] = True

    @property
    def least_separation(self) -> int:
        """The number of bands."""
        return self.bands

    def factor(self, participation: Participation, workload: Workload) -> BandedFactor:
        """Return the optimized matrix.

        Raises:
            ConfigError: There are too many rounds and bands.
        """
        rounds, bands = participation.rounds, min(self.bands, participation.rounds)
        if self.toeplitz:
            return ToeplitzBandedFactor(participation, _optimized_toeplitz(workload, bands, self.loss))
        if rounds**2 * bands > MAX_WORK:
            raise ConfigError(
                f"privacy.factorization.bands: {self.bands} given, but with {rounds} rounds at most"
                f" {MAX_WORK // rounds**2} can be optimized; allowed: fewer bands, toeplitz: true, or blt"
            )
        return BandedFactor(participation, _optimized(workload, bands, self.loss))


class BandedFactor(Factor):
    """A banded matrix by its diagonals: `diagonals[j, s]` is C[s + j, s], 0 beyond the last row."""

    def __init__(self, participation: Participation, diagonals: np.ndarray) -> None:
        """Store the diagonals, float64 [bands, T]."""
        self.participation, self.diagonals = participation, diagonals

    @property
    def num_states(self) -> int:
        """Number of earlier rows of the noise: one less than the bands."""
        return len(self.diagonals) - 1

    @property
    def column_norm(self) -> float:
        """Largest norm of a column: 1 to rounding."""
        return float(np.sqrt((self.diagonals**2).sum(0)).max())

    def sensitivity(self, rounds: int) -> float:
        """Return the root of the largest sum of squared norms of columns, whose rows do not overlap."""
        inside = np.arange(rounds) + np.arange(len(self.diagonals))[:, None] < rounds
        squares = (np.where(inside, self.diagonals[:, :rounds], 0.0) ** 2).sum(0)
        return math.sqrt(most_rows(squares, self.participation.first(rounds)))

    def matrix(self) -> np.ndarray:
        """Return C, float64 [T, T]."""
        return sum(
            np.diag(diagonal[: self.participation.rounds - j], -j) for j, diagonal in enumerate(self.diagonals)
        ) + np.zeros((self.participation.rounds, self.participation.rounds))

    def squared_errors(self, workload: Workload) -> np.ndarray:
        """Return the squared norm of each row of A·C⁻¹, float64 [T]."""
        found: np.ndarray = (_solved_right(workload.matrix(), self.diagonals) ** 2).sum(1)
        return found

    def advance(self, round: int, values: np.ndarray, states: np.ndarray) -> None:
        """Solve C·W = Z for a row of W; the states are the last rows, row s at s modulo their number."""
        for j in range(1, min(round, self.num_states) + 1):
            values -= self.diagonals[j, round - j] * states[(round - j) % self.num_states]
        values /= self.diagonals[0, round]
        if self.num_states:
            states[round % self.num_states] = values


class ToeplitzBandedFactor(BandedFactor):
    """A banded matrix with constant diagonals, whose error takes time in proportion to T."""

    def __init__(self, participation: Participation, coefficients: np.ndarray) -> None:
        """Store the first column, float64 [bands]."""
        inside = np.arange(participation.rounds) + np.arange(len(coefficients))[:, None] < participation.rounds
        super().__init__(participation, np.where(inside, coefficients[:, None], 0.0))
        self.coefficients = coefficients

    def squared_errors(self, workload: Workload) -> np.ndarray:
        """Return the squared norm of each row of A·C⁻¹, float64 [T]."""
        return toeplitz_errors(_inverse(self.coefficients, len(workload.rates)), workload)


def _inverse(coefficients: np.ndarray, rounds: int) -> np.ndarray:
    """Return the first column of the inverse of a banded Toeplitz matrix, float64 [rounds]."""
    from scipy.signal import lfilter  # takes long to import, and most runs need none of it

    found: np.ndarray = lfilter([1.0], coefficients, np.eye(1, rounds)[0])
    return found


@lru_cache(maxsize=16)
def _optimized_toeplitz(workload: Workload, bands: int, loss: str) -> np.ndarray:
    """Return the first column [bands], of norm 1, with the smallest error, by L-BFGS."""
    from scipy.optimize import minimize

    def evaluate(free: np.ndarray) -> float:
        column = np.concatenate([[1.0], free])
        errors = toeplitz_errors(_inverse(column, len(workload.rates)), workload)
        error = float(errors.mean() if loss == "mean" else errors.max())
        return math.log(error * float(column @ column))

    start = _square_root(bands)[1:]
    free = minimize(evaluate, start, method="L-BFGS-B", bounds=[(0.0, 1.0)] * len(start)).x if bands > 1 else start
    column = np.concatenate([[1.0], free])
    column /= np.linalg.norm(column)
    column.setflags(write=False)
    return column


def _solved_right(values: np.ndarray, diagonals: np.ndarray) -> np.ndarray:
    """Return V·C⁻¹ for values V [T, T], from the last column to the first."""
    solved = np.array(values.T)  # rows are contiguous
    for s in range(len(solved) - 1, -1, -1):
        for j in range(1, min(len(diagonals), len(solved) - s)):
            solved[s] -= diagonals[j, s] * solved[s + j]
        solved[s] /= diagonals[0, s]
    return solved.T


def _solved_right_transposed(values: np.ndarray, diagonals: np.ndarray) -> np.ndarray:
    """Return V·C⁻ᵀ for values V [T, T], from the first column to the last."""
    solved = np.array(values.T)
    for s in range(len(solved)):
        for j in range(1, min(len(diagonals), s + 1)):
            solved[s] -= diagonals[j, s - j] * solved[s - j]
        solved[s] /= diagonals[0, s]
    return solved.T


@lru_cache(maxsize=16)
def _optimized(workload: Workload, bands: int, loss: str) -> np.ndarray:
    """Return the diagonals [bands, T] with columns of norm 1 and the smallest error, by L-BFGS."""
    from scipy.optimize import minimize  # 0.3 s to import, and most runs need none of it

    rounds, matrix = len(workload.rates), workload.matrix()
    inside = np.arange(rounds) + np.arange(bands)[:, None] < rounds

    def evaluate(flat: np.ndarray) -> tuple[float, np.ndarray]:
        free = np.where(inside, flat.reshape(bands, rounds), 0.0)
        norms = np.sqrt((free**2).sum(0))
        value, gradient = _error(matrix, free / norms, loss)
        gradient = np.where(inside, gradient / value, 0.0)
        along = (gradient * free).sum(0) / norms**2
        return math.log(value), ((gradient - along * free) / norms).reshape(-1)

    start = np.where(inside, _square_root(bands)[:, None], 0.0)
    found = minimize(evaluate, start.reshape(-1), jac=True, method="L-BFGS-B", options=OPTIONS)
    free = np.where(inside, found.x.reshape(bands, rounds), 0.0)
    diagonals: np.ndarray = free / np.sqrt((free**2).sum(0))
    diagonals.setflags(write=False)
    return diagonals


def _error(matrix: np.ndarray, diagonals: np.ndarray, loss: str) -> tuple[float, np.ndarray]:
    """Return the squared error of A·C⁻¹ and its gradient with respect to the diagonals."""
    factor = _solved_right(matrix, diagonals)
    rows = (factor**2).sum(1)
    weights = np.full(len(rows), 1.0 / len(rows))
    value = float(rows.mean())
    if loss == "max":
        shares = rows / rows.max()
        value = float(rows.max() * np.mean(shares**POWER) ** (1 / POWER))
        weights = shares ** (POWER - 1) * np.mean(shares**POWER) ** (1 / POWER - 1) / len(rows)
    adjoint = _solved_right_transposed(2 * weights[:, None] * factor, diagonals)
    gradient = np.zeros_like(diagonals)
    for j in range(len(diagonals)):
        size = len(rows) - j
        gradient[j, :size] = -np.einsum("ts,ts->s", adjoint[:, :size], factor[:, j:])
    return value, gradient


def _square_root(bands: int) -> np.ndarray:
    """Return the first coefficients of (1 − x)^(−1/2), the square root of the matrix of prefix sums."""
    steps = np.arange(1, bands)
    return np.concatenate([[1.0], np.cumprod((2 * steps - 1) / (2 * steps))])
