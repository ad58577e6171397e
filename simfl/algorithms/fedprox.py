"""FedProx: Li et al. 2020, "Federated optimization in heterogeneous networks"."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from simfl.algorithms.base import Algorithm
from simfl.protocol import Batch, ClientUpdate, Loss, Outputs, Parts, State, Weights
from simfl.weights import squared_norm


@dataclass(frozen=True)
class FedProx(Algorithm):
    """FedAvg with a pull of (mu/2)·‖w − w_received‖² towards the received model; mu = 0 is FedAvg."""

    mu: float = 0.01  # strength of the pull

    fedavg_limit: ClassVar[str] = "mu = 0"

    def loss(
        self,
        outputs: dict[str, Outputs],
        batch: Batch,
        trained: Weights,
        received: Parts,
        state: State,
        update: ClientUpdate,
    ) -> Loss:
        # a squared norm: the gradient of norm(x)**2 is NaN at zero, where every round starts
        pull = squared_norm({name: trained[name] - w for name, w in received["weights"].items()})
        return Loss.from_outputs(outputs["student"], client_term=0.5 * self.mu * pull)
