"""FedSAM: Qu et al. 2022, "Generalized federated learning via sharpness aware minimization", Algorithm 1.

local step   g = ∇f(θ),    θ̂ = θ + rho·g/‖g‖,    θ ← θ − eta·∇f(θ̂)      both gradients on one batch; f the client's loss
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from simfl.algorithms.base import Algorithm
from simfl.constraints import NonNegativeFloat
from simfl.protocol import ClientUpdate, MicroStep, State, Weights
from simfl.weights import squared_norm


@dataclass(frozen=True)
class FedSam(Algorithm):
    """FedAvg with sharpness-aware local steps: the gradient is taken at weights that are moved uphill by rho.

    The norm of g is over all trained tensors. A local step costs two passes and two gradients. The reported training
    loss is that at θ, before the move.
    """

    rho: NonNegativeFloat = 0.05  # distance of the move; the paper tries 0.01 to 0.5

    fedavg_limit: ClassVar[str] = "rho = 0"
    fedavg_settings: ClassVar[Mapping[str, object] | None] = {"algorithm.rho": 0.0}

    def micro_steps(self) -> tuple[MicroStep, ...]:
        """Return the gradient at θ, then the step with the gradient at θ̂."""
        return (
            MicroStep(forwards=("student",), loss=self.loss, steps=False),
            MicroStep(forwards=("student",), loss=self.loss, at=self.perturbed_weights),
        )

    def perturbed_weights(
        self, trained: Weights, gradients: tuple[Weights, ...], state: State, update: ClientUpdate
    ) -> Weights:
        """Return θ̂; for a gradient of 0 it is θ."""
        (gradient,) = gradients
        scale = self.rho / squared_norm(gradient).sqrt().clamp_min(1e-12)
        return {name: trained[name] + scale * g for name, g in gradient.items()}
