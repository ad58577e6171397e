"""SP: Tung and Mori 2019, "Similarity-preserving knowledge distillation", with the received model as teacher.

A   features of the batch [b, D]      G   the rows of A·Aᵀ, each of length 1 [b, b]      T, S   teacher, student
loss = CE + weight·‖G_T − G_S‖²_F / b²
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from simfl.algorithms.base import Algorithm
from simfl.algorithms.distill import RECEIVED, begun
from simfl.constraints import NonNegativeFloat, PositiveInt
from simfl.protocol import Batch, ClientUpdate, Forward, Loss, Outputs, Parts, State, Weights


@dataclass(frozen=True)
class SimilarityPreserving(Algorithm):
    """FedAvg whose clients keep which examples of a batch look alike to the received model; weight 0 is FedAvg.

    A batch of one says nothing.
    """

    weight: NonNegativeFloat = 3000.0  # gamma; both public references
    from_round: PositiveInt = 2  # of the phase: at first the received model has nothing to teach
    fedavg_limit: ClassVar[str] = "weight = 0, and before `from_round`"
    needs_features: ClassVar[bool] = True
    needs_whole_batch: ClassVar[bool] = True

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
        mask = batch["mask"]
        gap = similarities(outputs["teacher"].require("features").detach(), mask)
        gap = gap - similarities(outputs["student"].require("features"), mask)
        kept = gap.square().sum() / mask.sum().clamp_min(1.0).square()
        return Loss.from_outputs(outputs["student"], batch_term=self.weight * begun(update, self.from_round) * kept)


def similarities(features: Tensor, mask: Tensor) -> Tensor:
    """G [b, b]; rows and columns of padding are zero."""
    rows = features.flatten(1) * mask[:, None]
    products = rows @ rows.mT
    squares = products.square().sum(1, keepdim=True)
    return products * torch.where(squares > 0, squares, 1.0).rsqrt()  # a row of zeros stays so, with a finite gradient
