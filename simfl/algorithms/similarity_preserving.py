"""SP: Tung and Mori 2019, "Similarity-preserving knowledge distillation", with the received model as teacher.

A   features of the batch [b, D]      G   A·Aᵀ with rows of length 1 [b, b]      T, S   teacher, student
loss = CE + weight·‖G_T − G_S‖²_F / b²
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from simfl.algorithms.base import Algorithm
from simfl.algorithms.distill import RECEIVED, active_from
from simfl.constraints import NonNegativeFloat, PositiveInt
from simfl.protocol import Batch, ClientUpdate, Forward, Loss, Outputs, Parts, State, Weights


@dataclass(frozen=True)
class SimilarityPreserving(Algorithm):
    """FedAvg whose clients preserve the received model's similarities between the examples of a batch.

    The term has no effect for a batch of one.
    """

    weight: NonNegativeFloat = 3000.0  # gamma; the value of both public references
    from_round: PositiveInt = 2  # of the phase; the model received in the first round is no teacher yet
    fedavg_limit: ClassVar[str] = "weight = 0, and before `from_round`"
    fedavg_settings: ClassVar[Mapping[str, object] | None] = {"algorithm.weight": 0.0}
    example: ClassVar[Mapping[str, object]] = {"algorithm.weight": 10.0}
    needs_features: ClassVar[bool] = True
    needs_whole_batch: ClassVar[bool] = True

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
        """Return the task loss with the distance of similarities."""
        mask = batch["mask"]
        gap = similarities(outputs["teacher"].require("features").detach(), mask)
        gap = gap - similarities(outputs["student"].require("features"), mask)
        distance = gap.square().sum() / mask.sum().clamp_min(1.0).square()
        weight = self.weight * active_from(update, self.from_round)
        return Loss.from_outputs(outputs["student"], batch_term=weight * distance)


def similarities(features: Tensor, mask: Tensor) -> Tensor:
    """Return G [b, b]; rows and columns of padding are zero."""
    rows = features.flatten(1) * mask[:, None]
    products = rows @ rows.mT
    squares = products.square().sum(1, keepdim=True)
    return products * torch.where(squares > 0, squares, 1.0).rsqrt()  # a zero row stays zero, with a finite gradient
