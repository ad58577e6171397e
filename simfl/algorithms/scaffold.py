"""SCAFFOLD: Karimireddy et al. 2020, "SCAFFOLD: stochastic controlled averaging for federated learning", option II.

c, c_k   control of the server and of the client, zero at first       L_k     the sum of its local steps' rates
local step    w ← w − eta·(g − c_k + c)                               eta     local learning rate
c_k⁺ = c_k − c + (w_received − w_k)/L_k                                N, S    clients in all, in the round
server        w ← w + mean_S(w_k − w),   c ← c + (S/N)·mean_S(c_k⁺ − c_k)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch

from simfl.algorithms.base import Algorithm
from simfl.protocol import Batch, Loss, Means, Outputs, Parts, Server, State, Visit, Weights
from simfl.weights import dot


@dataclass(frozen=True)
class Scaffold(Algorithm):
    """Control variates that cancel the clients' drift. Needs plain SGD as local optimizer; travels 2·d both ways."""

    # deltas by the phase's weighting, controls over clients: the sum of all c_k stays N·c
    reduce: ClassVar[Mapping[str, str]] = {"weights": "weighting", "control": "clients"}

    def sgd_with(self) -> tuple[str, ...]:
        """Plain steps alone: the control is their mean gradient."""
        return ()

    def init_server(self, weights: Weights) -> State:
        return {"control": {name: torch.zeros_like(w) for name, w in weights.items()}}

    def init_client(self, received: Parts, visit: Visit) -> State:
        return {"control": {name: torch.zeros_like(w) for name, w in received["weights"].items()}}

    def download(self, server: Server) -> Parts:
        return {"weights": server.weights, "control": server.state["control"]}

    def loss(
        self, outputs: dict[str, Outputs], batch: Batch, trained: Weights, received: Parts, state: State, visit: Visit
    ) -> Loss:
        # the gradient of ⟨w, c − c_k⟩ is the correction itself
        drift = {name: c - state["control"][name] for name, c in received["control"].items()}
        return Loss.of(outputs["student"], client=dot(trained, drift))

    def upload(self, trained: Weights, received: Parts, state: State, visit: Visit) -> Parts:
        delta = {name: trained[name] - w for name, w in received["weights"].items()}
        length = visit.length.clamp_min(1e-12)
        moved = (visit.steps > 0).float()  # a client without examples has nothing to say
        change = {name: -moved * (d / length + received["control"][name]) for name, d in delta.items()}
        return {"weights": delta, "control": change}

    def remember(self, sent: Parts, trained: Weights, received: Parts, state: State, visit: Visit) -> State:
        # what the server got, not what was computed: the invariant holds under a lossy codec too
        return {"control": {name: c + sent["control"][name] for name, c in state["control"].items()}}

    def aggregate(self, server: Server, means: Means) -> tuple[Weights, State]:
        share = means.num_sampled / means.num_clients
        control = {name: c + share * means.parts["control"][name] for name, c in server.state["control"].items()}
        return means.parts["weights"], {"control": control}
