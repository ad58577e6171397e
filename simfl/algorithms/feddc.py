"""FedDC: Gao et al. 2022, "FedDC: federated learning with non-IID data via local drift decoupling and correction".

w       received model             θ_k   the client's model after its last step      δ_k   θ_k − w
h_k     the client's drift         r_k   its weight, 1 on average over all clients   L_k   sum of its steps' rates
g_k, g  gradients of the client (times r_k) and of the server; like h_k initially zero
N, S    all clients, clients of the round
client   θ_k ≈ argmin f_k(θ) + (α/2r_k)·‖θ − (w − h_k)‖² + ⟨θ, g − g_k⟩/r_k
         h_k⁺ = h_k + δ_k,    g_k⁺ = g_k − g − r_k·δ_k/L_k
server   w ← mean_S(θ_k) + mean_N(h_k⁺)   or   mean_S(θ_k + h_k⁺),    g ← g + (1/N)·Σ_S(g_k⁺ − g_k)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from simfl.algorithms.base import Algorithm
from simfl.constraints import NonNegativeFloat
from simfl.protocol import AggregatedUpdates, Batch, ClientUpdate, Loss, Outputs, Parts, Server, State, Task, Weights
from simfl.weights import dot, squared_norm


@dataclass(frozen=True)
class FedDC(Algorithm):
    """Each client tracks its drift from the global model, and the server averages models corrected by it.

    `drift: all` adds the mean drift of all clients, of which the server keeps a running mean (the published code);
    `sampled` adds that of the round's clients (the paper's Algorithm 1). Both agree with full participation.
    """

    alpha: NonNegativeFloat = 0.01  # strength of the pull to the drifted model; the published default
    control: bool = True  # whether to use the gradient terms g_k and g; without them only deltas travel
    drift: Literal["all", "sampled"] = "all"  # clients whose mean drift the server adds
    reduce: ClassVar[Mapping[str, str]] = {"weights": "clients", "control": "clients"}

    def supported_sgd_settings(self) -> tuple[str, ...] | None:
        """Return those of the published protocol: the gradient terms are mean gradients of plain SGD steps."""
        return ("weight_decay", "clip_norm") if self.control else None

    def init_server(self, weights: Weights, task: Task) -> State:
        """Return zero drift and gradient."""
        kept = (["drift"] if self.drift == "all" else []) + (["control"] if self.control else [])
        return {key: {name: torch.zeros_like(w) for name, w in weights.items()} for key in kept}

    def init_client(self, received: Parts, update: ClientUpdate) -> State:
        """Return zero drift and gradient."""
        kept = ["drift"] + (["control"] if self.control else [])
        return {key: {name: torch.zeros_like(w) for name, w in received["weights"].items()} for key in kept}

    def download(self, server: Server) -> Parts:
        """Return the global model and the server's gradient g."""
        return {"weights": server.weights} | ({"control": server.state["control"]} if self.control else {})

    def loss(
        self,
        outputs: dict[str, Outputs],
        batch: Batch,
        trained: Weights,
        received: Parts,
        state: State,
        update: ClientUpdate,
    ) -> Loss:
        """Return the task loss with the proximal and the gradient term."""
        drift, r = state["drift"], update.weight.clamp_min(1e-12)
        distance = squared_norm({name: trained[name] - (w - drift[name]) for name, w in received["weights"].items()})
        term = 0.5 * self.alpha / r * distance
        if self.control:
            gap = {name: g - state["control"][name] for name, g in received["control"].items()}
            term = term + dot(trained, gap) / r
        return Loss.from_outputs(outputs["student"], client_term=term)

    def upload(self, trained: Weights, received: Parts, state: State, update: ClientUpdate) -> Parts:
        """Return the delta (with the drift, if `sampled`) and the change of g_k."""
        delta = {name: trained[name] - w for name, w in received["weights"].items()}
        sent = delta if self.drift == "all" else {name: h + 2.0 * delta[name] for name, h in state["drift"].items()}
        if not self.control:
            return {"weights": sent}
        moved = (update.num_steps > 0).float()  # a client without examples sends no change
        speed = update.weight / update.total_rate.clamp_min(1e-12)
        change = {name: -moved * (received["control"][name] + speed * d) for name, d in delta.items()}
        return {"weights": sent, "control": change}

    def update_state(self, sent: Parts, trained: Weights, received: Parts, state: State, update: ClientUpdate) -> State:
        """Update drift and gradient with the decoded upload, so that the server's means stay those of the clients."""
        own = 1.0 if self.drift == "all" else 0.5  # h + δ from what was sent: δ, or h + 2δ
        drift = {name: own * (h + sent["weights"][name]) for name, h in state["drift"].items()}
        if not self.control:
            return {"drift": drift}
        return {"drift": drift, "control": {name: g + sent["control"][name] for name, g in state["control"].items()}}

    def aggregate(self, server: Server, aggregated: AggregatedUpdates) -> tuple[Weights, State]:
        """Return the mean delta plus the mean drift, and the new running means."""
        share, delta = aggregated.num_sampled / aggregated.num_clients, aggregated.means["weights"]
        state = dict(server.state)
        if self.control:
            change = aggregated.means["control"]
            state["control"] = {name: g + share * change[name] for name, g in state["control"].items()}
        if self.drift == "sampled":
            return delta, state
        state["drift"] = {name: h + share * delta[name] for name, h in state["drift"].items()}
        return {name: d + state["drift"][name] for name, d in delta.items()}, state
