"""Client updates, outputs and weights of scalars, for formulas computed by hand."""

from __future__ import annotations

import torch
from torch import Tensor

from simfl.protocol import ClientUpdate, Outputs


def update(
    steps: float = 1, learning_rate: float = 0.1, weight: float = 1.0, round: int = 0, step: int = 0
) -> ClientUpdate:
    """A client's update as scalar tensors."""
    return ClientUpdate(
        client=torch.tensor(0),
        key=torch.tensor(0),
        round=torch.tensor(round),
        step=torch.tensor(step),
        num_steps=torch.tensor(float(steps)),
        num_examples=torch.tensor(4.0),
        weight=torch.tensor(weight),
        num_clients=torch.tensor(10.0),
        num_sampled=torch.tensor(2.0),
        learning_rate=torch.tensor(learning_rate),
        total_rate=torch.tensor(steps * learning_rate),
        rank=torch.tensor(1 << 30),
    )


def outputs(logits: list[list[float]], features: list[list[float]] | None = None, sums: float = 0.0) -> Outputs:
    """A pass over as many examples as there are rows, each with this task loss."""
    rows = len(logits)
    return Outputs(
        torch.tensor(logits),
        features=None if features is None else torch.tensor(features),
        loss_sums=torch.full((rows,), sums),
        loss_weights=torch.ones(rows),
    )


def w(*values: float) -> dict[str, Tensor]:
    """Weights of one tensor named `w`."""
    return {"w": torch.tensor(values)}


MASK = {"mask": torch.ones(1)}
