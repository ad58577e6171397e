"""The matrix mechanism over the rounds of a phase (DP-FTRL; Kairouz et al. 2021, Denisov et al. 2022).

    T  rounds     X  sums of clipped updates, [T, d]     C  lower triangular, [T, T]     Z  independent Gaussian noise
    A  workload: models as linear functions of the releases, [T, T]     b  separation     k  participations

A round releases a row of X + C⁻¹Z. This is a function of CX + Z, so the privacy of all rounds together is that of one
Gaussian mechanism, whose sensitivity is that of C: the largest norm of CX for one unit with rows of norm 1, in any
rounds that the participation allows. It holds for updates that depend on earlier releases (Denisov et al. 2022, arXiv
2202.08312). The error of the models is that of A·C⁻¹.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np

from simfl.constraints import PositiveInt


@dataclass(frozen=True)
class Participation:
    """The rounds in which one client may take part (Choquette-Choo et al. 2023)."""

    rounds: int  # T
    separation: int  # b: two rounds with the same client are at least so far apart
    participations: int  # k: largest number of rounds with one client

    def first(self, rounds: int) -> Participation:
        """Return the participation in the first rounds alone."""
        most = min(self.participations, -(-rounds // self.separation))
        return Participation(rounds, self.separation, most)


@dataclass(frozen=True)
class Workload:
    """The models after each round as linear functions of the released averages: server SGD, with or without momentum.

    Attributes:
        rates: Learning rate of each round, times the gain of the momentum.
        momentum: Weight of the old momentum; 0: none.
    """

    rates: tuple[float, ...]
    momentum: float = 0.0

    @property
    def is_constant(self) -> bool:
        """True if all rates are equal."""
        return len(set(self.rates)) == 1

    @cached_property
    def decays(self) -> np.ndarray:
        """Weight of an average in the momentum after 0, 1, … further rounds, float64 [T]."""
        found: np.ndarray = self.momentum ** np.arange(len(self.rates), dtype=np.float64)
        return found

    def applied(self, coefficients: np.ndarray) -> np.ndarray:
        """Return A·L for the lower triangular Toeplitz matrix L of these coefficients, float64 [T, T]."""
        kept = np.convolve(self.decays, coefficients)[: len(self.rates)]
        return np.cumsum(np.array(self.rates)[:, None] * toeplitz(kept), axis=0)

    def matrix(self) -> np.ndarray:
        """Return A, float64 [T, T]."""
        return self.applied(np.eye(1, len(self.rates))[0])


def toeplitz_errors(inverse: np.ndarray, workload: Workload) -> np.ndarray:
    """Return the squared norm of each row of A·C⁻¹, where C⁻¹ is the Toeplitz matrix of these coefficients [T]."""
    if workload.is_constant:  # then A·C⁻¹ is a Toeplitz matrix
        kept = np.convolve(workload.decays, inverse)[: len(inverse)] if workload.momentum else inverse
        return np.cumsum((workload.rates[0] * np.cumsum(kept)) ** 2)
    found: np.ndarray = (workload.applied(inverse) ** 2).sum(1)
    return found


class Factor:
    """A matrix C, optimized for a participation and a workload; its values never change.

    Noise is generated round by round: `advance` solves C·W = Z for the next row of W and keeps `num_states` rows.
    """

    participation: Participation

    @property
    def num_states(self) -> int:
        """Number of vectors that the noise of a round depends on, besides its own draw."""
        raise NotImplementedError

    @property
    def column_norm(self) -> float:
        """Largest Euclidean norm of a column of C: the sensitivity for one participation."""
        raise NotImplementedError

    def sensitivity(self, rounds: int) -> float:
        """Return the sensitivity of the first rows and columns of C, for the participation in so many rounds."""
        raise NotImplementedError

    def matrix(self) -> np.ndarray:
        """Return C, float64 [T, T]."""
        raise NotImplementedError

    def squared_errors(self, workload: Workload) -> np.ndarray:
        """Return the squared norm of each row of A·C⁻¹, float64 [T]."""
        raise NotImplementedError

    def advance(self, round: int, values: np.ndarray, states: np.ndarray) -> None:
        """Replace independent normals by the noise of a round, and the states by those of the next round.

        Args:
            round: The round, from 0.
            values: A row of Z, float64 [d]; a row of W = C⁻¹Z afterwards.
            states: The states after the round before, float64 [num_states, d]; zero before round 0.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Factorization:
    """The base class of matrix factorizations. `example` are settings for `simfl.contract.check`."""

    separation: PositiveInt | None = None  # b: fewest rounds from one participation to the next; null: see the docs
    participations: PositiveInt | None = None  # k: most rounds with one client; null: as many as sampling makes
    loss: Literal["mean", "max"] = "mean"  # squared error that is minimized: mean over all rounds, or of the worst one

    example: ClassVar[Mapping[str, object]] = {}
    amplifies: ClassVar[bool] = False  # whether sampling clients in turns at a rate amplifies privacy

    @property
    def least_separation(self) -> int:
        """The smallest separation for which the sensitivity is known."""
        return 1

    def factor(self, participation: Participation, workload: Workload) -> Factor:
        """Return the matrix with the smallest error at equal privacy; equal arguments give equal bits."""
        raise NotImplementedError


def toeplitz(coefficients: np.ndarray) -> np.ndarray:
    """Return the lower triangular matrix [T, T] whose first column has these coefficients."""
    size = len(coefficients)
    padded = np.concatenate([np.zeros(size - 1), coefficients])
    rows = np.lib.stride_tricks.sliding_window_view(padded, size)[:, ::-1]
    return np.ascontiguousarray(rows)


def most_rows(values: np.ndarray, participation: Participation) -> float:
    """Return the largest sum of values [T] over rounds in which one client may take part.

    This is algorithm 3 (VecSens) of Choquette-Choo et al. 2023 (arXiv 2306.08153), a dynamic program.
    """
    gap, best = participation.separation, np.zeros(participation.rounds + 1)  # best[t]: of the first t rounds
    for _ in range(participation.participations):
        before = np.concatenate([np.zeros(gap), best])[: participation.rounds + 1]  # best[t − b], 0 before the start
        taken = before[1:] + values
        best = np.maximum.accumulate(np.concatenate([[0.0], np.maximum(taken, best[1:])]))
    return float(best[-1])


def root_mean_square(squared_errors: np.ndarray) -> float:
    """Return the root of the mean of squared errors."""
    return math.sqrt(float(squared_errors.mean()))
