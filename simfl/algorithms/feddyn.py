"""FedDyn: Acar et al. 2021, "Federated learning based on dynamic regularization", Algorithm 1.

w       received model      θ_k   the client's model after its last step      r_k   its weight, 1 on average
h_k, h  linear terms of the client and of the server, initially zero          N, S  all clients, clients of the round
client   θ_k ≈ argmin f_k(θ) − ⟨θ, h_k⟩ + (α/2r_k)·‖θ − w‖²,    h_k ← h_k − (α/r_k)·(θ_k − w)
server   h ← h − (α/N)·Σ_S(θ_k − w),    w ← mean_S θ_k − h/α
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from simfl.algorithms.base import Algorithm
from simfl.constraints import PositiveFloat
from simfl.protocol import AggregatedUpdates, Batch, ClientUpdate, Loss, Outputs, Parts, Server, State, Task, Weights
from simfl.weights import dot, squared_norm


@dataclass(frozen=True)
class FedDyn(Algorithm):
    """FedAvg with a linear and a proximal term per client.

    Its fixed point is a minimum of the clients' summed losses.
    The phase's `weighting` selects the sum: its weights divide alpha (as in the published code), while models are
    averaged over clients.
    """

    alpha: PositiveFloat = 0.01  # strength of the proximal term; the published tuning spans 0.001 to 0.1
    reduce: ClassVar[Mapping[str, str]] = {"weights": "clients"}
    example: ClassVar[Mapping[str, object]] = {"algorithm.alpha": 0.1}

    def init_server(self, weights: Weights, task: Task) -> State:
        """Return h = 0."""
        return {"gradient": {name: torch.zeros_like(w) for name, w in weights.items()}}

    def init_client(self, received: Parts, update: ClientUpdate) -> State:
        """Return h_k = 0."""
        return {"gradient": {name: torch.zeros_like(w) for name, w in received["weights"].items()}}

    def loss(
        self,
        outputs: dict[str, Outputs],
        batch: Batch,
        trained: Weights,
        received: Parts,
        state: State,
        update: ClientUpdate,
    ) -> Loss:
        """Return the task loss with the proximal and the linear term."""
        distance = squared_norm({name: trained[name] - w for name, w in received["weights"].items()})
        return Loss.from_outputs(
            outputs["student"], client_term=0.5 * self._alpha(update) * distance - dot(trained, state["gradient"])
        )

    def update_state(self, sent: Parts, trained: Weights, received: Parts, state: State, update: ClientUpdate) -> State:
        """Update h_k with the decoded delta, so that h stays the mean of the h_k under a lossy codec."""
        alpha = self._alpha(update)
        return {"gradient": {name: h - alpha * sent["weights"][name] for name, h in state["gradient"].items()}}

    def aggregate(self, server: Server, aggregated: AggregatedUpdates) -> tuple[Weights, State]:
        """Return the mean delta minus h/alpha, and the new h."""
        share, delta = aggregated.num_sampled / aggregated.num_clients, aggregated.means["weights"]
        h = {name: g - self.alpha * share * delta[name] for name, g in server.state["gradient"].items()}
        return {name: d - h[name] / self.alpha for name, d in delta.items()}, {"gradient": h}

    def _alpha(self, update: ClientUpdate) -> Tensor:
        return self.alpha / update.weight.clamp_min(1e-12)
