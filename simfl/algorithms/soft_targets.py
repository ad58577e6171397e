"""Soft targets: Hinton et al. 2015, "Distilling the knowledge in a neural network", as in FedVQA (2024).

loss = CE + weight·τ²·KL(p^T ‖ p^S), p = softmax(logits/τ)      T the received model, S the trained one
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from simfl.algorithms.base import Algorithm
from simfl.algorithms.distill import RECEIVED, active_from, divergence
from simfl.constraints import NonNegativeFloat, PositiveFloat, PositiveInt
from simfl.protocol import Batch, ClientUpdate, Forward, Loss, Outputs, Parts, State, Weights


@dataclass(frozen=True)
class SoftTargets(Algorithm):
    """FedAvg with distillation from the received model's softened predictions."""

    weight: NonNegativeFloat = 1.0  # of the divergence
    temperature: PositiveFloat = 2.0  # tau; the paper tries 1, 2 and 3, and its ST rows are those of 2
    from_round: PositiveInt = 2  # of the phase; the model received in the first round is no teacher yet

    needs_logits: ClassVar[bool] = True
    fedavg_limit: ClassVar[str] = "weight = 0, and before `from_round`"
    fedavg_settings: ClassVar[Mapping[str, object] | None] = {"algorithm.weight": 0.0}

    def forwards(self) -> dict[str, Forward]:
        """Return the passes of the trained and the received model."""
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
        """Return the task loss with the divergence."""
        taught = divergence(outputs["teacher"], outputs["student"], self.temperature)
        weight = self.weight * active_from(update, self.from_round)
        return Loss.from_outputs(outputs["student"], example_terms=weight * taught)
