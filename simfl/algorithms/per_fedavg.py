"""Per-FedAvg: Fallah, Mokhtari and Ozdaglar 2020, "Personalized federated learning: a meta-learning approach".

F(θ) = f(θ − alpha·∇f(θ)), the loss after one step of size alpha; its gradient is (I − alpha·∇²f(θ))·∇f(θ̃)
local step   θ̃ = θ − alpha·∇f(θ),    g = ∇f(θ̃),
             first order (FO)       θ ← θ − eta·g
             Hessian-free (HF)      θ ← θ − eta·( g − alpha·(∇f(θ + delta·g) − ∇f(θ − delta·g))/(2·delta) )
             (Algorithm 1 with eqs. 7 and 8)

The paper draws independent batches for the gradients of a step. Here all of them are taken on one batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from simfl.algorithms.base import Algorithm
from simfl.constraints import NonNegativeFloat, PositiveFloat
from simfl.protocol import Batch, ClientUpdate, Loss, MicroStep, Outputs, Parts, State, Weights
from simfl.weights import squared_norm


@dataclass(frozen=True)
class PerFedAvg(Algorithm):
    """FedAvg of an initialization from which one gradient step of a client gives a good personal model.

    For personal models, add a phase with `communicate: false` that takes one step at rate alpha.
    """

    alpha: NonNegativeFloat = 0.01  # rate of the inner step
    hessian: Literal["first_order", "free"] = "first_order"  # first_order: without ∇²f; free: finite differences
    delta: PositiveFloat = 1e-3  # step of the finite difference, times g

    fedavg_limit: ClassVar[str] = "alpha = 0"
    fedavg_settings: ClassVar[Mapping[str, object] | None] = {"algorithm.alpha": 0.0}

    def micro_steps(self) -> tuple[MicroStep, ...]:
        """Return the gradients in order; the last micro-step applies the last one or their combination."""
        student = ("student",)
        inner = MicroStep(student, self.loss, steps=False)
        if self.hessian == "first_order":
            return (inner, MicroStep(student, self.loss, at=self.adapted_weights))
        return (
            inner,
            MicroStep(student, self.loss, at=self.adapted_weights, steps=False),
            MicroStep(student, self.loss, at=self.forward_weights, steps=False),
            MicroStep(student, self.loss, at=self.backward_weights, steps=False),
            MicroStep((), self.combined_loss, at=self.combined_gradient),
        )

    def adapted_weights(
        self, trained: Weights, gradients: tuple[Weights, ...], state: State, update: ClientUpdate
    ) -> Weights:
        """Return θ̃."""
        return {name: trained[name] - self.alpha * g for name, g in gradients[0].items()}

    def forward_weights(
        self, trained: Weights, gradients: tuple[Weights, ...], state: State, update: ClientUpdate
    ) -> Weights:
        """Return θ + delta·g."""
        return {name: trained[name] + self.delta * g for name, g in gradients[1].items()}

    def backward_weights(
        self, trained: Weights, gradients: tuple[Weights, ...], state: State, update: ClientUpdate
    ) -> Weights:
        """Return θ − delta·g."""
        return {name: trained[name] - self.delta * g for name, g in gradients[1].items()}

    def combined_gradient(
        self, trained: Weights, gradients: tuple[Weights, ...], state: State, update: ClientUpdate
    ) -> Weights:
        """Return the Hessian-free gradient, as the point at which `combined_loss` has this gradient."""
        _, g, forward, backward = gradients
        scale = self.alpha / (2.0 * self.delta)
        return {name: g[name] - scale * (forward[name] - backward[name]) for name in g}

    def combined_loss(
        self,
        outputs: dict[str, Outputs],
        batch: Batch,
        trained: Weights,
        received: Parts,
        state: State,
        update: ClientUpdate,
    ) -> Loss:
        """Return half the squared norm of the point, whose gradient is the point itself."""
        return Loss.from_outputs(outputs["student"], client_term=0.5 * squared_norm(trained))
