"""Soft targets: Hinton et al. 2015, "Distilling the knowledge in a neural network", as in FedVQA (2024).

loss = CE + weight·τ²·KL(p^T ‖ p^S), p = softmax(logits/τ)      T the received model, S the trained one
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from simfl.algorithms.base import Algorithm
from simfl.algorithms.distill import RECEIVED, begun, divergence
from simfl.constraints import NonNegativeFloat, PositiveFloat, PositiveInt
from simfl.protocol import Batch, ClientUpdate, Forward, Loss, Outputs, Parts, State, Weights


@dataclass(frozen=True)
class SoftTargets(Algorithm):
    """FedAvg whose clients also learn the received model's softened predictions; weight 0 is FedAvg."""

    weight: NonNegativeFloat = 1.0  # of the divergence
    temperature: PositiveFloat = 2.0  # tau; the paper tries 1, 2 and 3, and its ST rows are those of 2
    from_round: PositiveInt = 2  # of the phase: at first the received model has nothing to teach

    fedavg_limit: ClassVar[str] = "weight = 0, and before `from_round`"

    def forwards(self) -> dict[str, Forward]:
        return {"student": Forward(), "teacher": RECEIVED}

    def loss(
        self,
        outputs: dict[str, Outputs],
        batch: Batch,
        trained: Weights,
        received: Parts,
        state: State,
        update: ClientUpdate,
    ) -> Loss:
        taught = divergence(outputs["teacher"], outputs["student"], self.temperature)
        return Loss.from_outputs(
            outputs["student"], example_terms=self.weight * begun(update, self.from_round) * taught
        )
