"""FedProx: Li et al. 2020, "Federated optimization in heterogeneous networks".

loss = CE + (mu/2)·‖θ − w‖²      θ the trained weights, w the received ones
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from simfl.algorithms.base import Algorithm
from simfl.protocol import Batch, ClientUpdate, Loss, Outputs, Parts, State, Weights
from simfl.weights import squared_norm


@dataclass(frozen=True)
class FedProx(Algorithm):
    """FedAvg with a proximal term that pulls clients towards the received model."""

    mu: float = 0.01  # strength of the proximal term

    fedavg_limit: ClassVar[str] = "mu = 0"
    fedavg_settings: ClassVar[Mapping[str, object] | None] = {"algorithm.mu": 0.0}

    def loss(
        self,
        outputs: dict[str, Outputs],
        batch: Batch,
        trained: Weights,
        received: Parts,
        state: State,
        update: ClientUpdate,
    ) -> Loss:
        """Return the task loss with the proximal term."""
        # squared_norm, because the gradient of norm(x)**2 is NaN at zero, where every round starts
        distance = squared_norm({name: trained[name] - w for name, w in received["weights"].items()})
        return Loss.from_outputs(outputs["student"], client_term=0.5 * self.mu * distance)
