"""Staleness functions: the factor of an asynchronous update that was computed from an older version of the model.

    τ   staleness: server steps between the version that the client received and the step that applies its update
    x   the current model      v   the version that the client received      Δ   the client's update

Factors of 1 at τ = 0 make asynchronous training with a full buffer and equal durations the same as FedAvg. To add one,
write it and a line in the table, or name your own class in the experiment (`package.module:Class`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from simfl.constraints import NonNegativeFloat, NonNegativeInt, PositiveFloat
from simfl.registry import Registry


@dataclass(frozen=True)
class Staleness:
    """The base class of staleness functions.

    Attributes:
        needs_norms: Whether the factor depends on norms of tensors: `factor_of_norms` is called in place of `factor`.
        example: Settings for tests of the contract.
    """

    needs_norms: ClassVar[bool] = False
    example: ClassVar[Mapping[str, object]] = {}

    def factor(self, staleness: int) -> float:
        """Return the factor of an update, from its staleness τ ≥ 0."""
        raise NotImplementedError

    def factor_of_norms(self, staleness: int, distance: float, norm: float) -> float:
        """Return the factor of an update, from τ, the distance ‖x − v‖ and the norm ‖Δ‖."""
        return self.factor(staleness)


@dataclass(frozen=True)
class Unchanged(Staleness):
    """1: stale updates count like fresh ones (Xie et al. 2019, "constant")."""

    def factor(self, staleness: int) -> float:
        """Return 1."""
        return 1.0


@dataclass(frozen=True)
class Polynomial(Staleness):
    """(1 + τ)^(−exponent). FedBuff and FedAsync's `poly` (Nguyen et al. 2022; Xie et al. 2019, section 5.2)."""

    exponent: NonNegativeFloat = 0.5  # a; 0.5 in both papers' experiments

    def factor(self, staleness: int) -> float:
        """Return (1 + τ)^(−exponent)."""
        return 1.0 / math.sqrt(1 + staleness) if self.exponent == 0.5 else float((1 + staleness) ** -self.exponent)


@dataclass(frozen=True)
class Hinge(Staleness):
    """1 up to a staleness of `after`, then 1 / (slope·(τ − after) + 1) (FedAsync's `hinge`; Xie et al. 2019)."""

    slope: PositiveFloat = 10.0  # a
    after: NonNegativeInt = 4  # b: largest staleness without a discount

    def factor(self, staleness: int) -> float:
        """Return 1 or 1 / (slope·(τ − after) + 1)."""
        return 1.0 if staleness <= self.after else 1.0 / (self.slope * (staleness - self.after) + 1.0)


@dataclass(frozen=True)
class Distance(Staleness):
    """scale / (γ + epsilon) with γ = ‖x − v‖ / ‖Δ‖: AsyncFedED's rate of the global model (Wang et al. 2022).

    Staleness is measured by how far the model has moved, compared with the update, not by a count of steps. AsyncFedED
    also adapts the clients' local steps to γ, which is not done here: durations would depend on trained values.
    """

    scale: PositiveFloat = 1.0  # λ
    epsilon: PositiveFloat = 1.0  # ε: bounds the factor of a fresh update by λ/ε; with λ = ε it is 1

    needs_norms: ClassVar[bool] = True

    def factor_of_norms(self, staleness: int, distance: float, norm: float) -> float:
        """Return λ / (γ + ε); an update of norm 0 has the factor 0 if the model has moved."""
        if norm == 0.0:
            return 0.0 if distance else self.scale / self.epsilon
        return self.scale / (distance / norm + self.epsilon)


STALENESS: Registry[Staleness] = Registry(
    {
        "constant": "simfl.asynchronous.staleness:Unchanged",
        "distance": "simfl.asynchronous.staleness:Distance",
        "hinge": "simfl.asynchronous.staleness:Hinge",
        "polynomial": "simfl.asynchronous.staleness:Polynomial",
    }
)
