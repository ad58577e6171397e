"""SCAFFOLD: Karimireddy et al. 2020, "SCAFFOLD: stochastic controlled averaging for federated learning", Algorithm 1.

c, c_k   controls of the server and of the client, initially zero     L_k     sum of the local steps' rates
local step    w ← w − eta·(g − c_k + c)                               eta     local learning rate
option I      c_k⁺ = the gradient of the client's loss at w_received, without dropout, over the batches of the update
option II     c_k⁺ = c_k − c + (w_received − w_k)/L_k                 N, S    all clients, clients of the round
server        w ← w + mean_S(w_k − w),   c ← c + (S/N)·mean_S(c_k⁺ − c_k)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from simfl.algorithms.base import Algorithm
from simfl.protocol import (
    EXTRA,
    AggregatedUpdates,
    Batch,
    ClientUpdate,
    Forward,
    Loss,
    MicroStep,
    ModelInfo,
    Outputs,
    Parts,
    Server,
    State,
    Task,
    Weights,
)
from simfl.weights import dot

ANCHOR = f"{EXTRA}/anchor/"


@dataclass(frozen=True)
class Scaffold(Algorithm):
    """FedAvg with control variates that correct the clients' drift.

    Option II requires plain SGD. Option I allows any local optimizer, at the cost of one more pass and gradient a step.
    """

    option: Literal["i", "ii"] = "ii"  # source of a client's control: a gradient (i), or its delta (ii)
    fedavg_limit: ClassVar[str] = "in the first round"
    fedavg_settings: ClassVar[Mapping[str, object] | None] = {"rounds": 1}
    # controls are averaged over clients, so that the sum of all c_k stays N·c
    reduce: ClassVar[Mapping[str, str]] = {"weights": "weighting", "control": "clients"}

    def supported_sgd_settings(self) -> tuple[str, ...] | None:
        """Return () for option II, whose control is the mean gradient of plain SGD steps."""
        return () if self.option == "ii" else None

    def forwards(self) -> dict[str, Forward]:
        """Return the pass of the trained model, and for option I that of the received model."""
        if self.option == "ii":
            return {"student": Forward()}
        return {"student": Forward(), "anchor": Forward(sources=(("*", "extra:anchor"),), train=False)}

    def micro_steps(self) -> tuple[MicroStep, ...]:
        """Return the step of the trained model, and for option I a gradient at the received model."""
        if self.option == "ii":
            return (MicroStep(forwards=("student",), loss=self.loss),)
        return (
            MicroStep(forwards=("student",), loss=self.loss, excludes=(ANCHOR + "*",)),
            MicroStep(forwards=("anchor",), loss=self.anchor_loss, trains=(ANCHOR + "*",), steps=False),
        )

    def init_server(self, weights: Weights, task: Task) -> State:
        """Return c = 0."""
        return {"control": _zeros(weights)}

    def init_client(self, received: Parts, update: ClientUpdate) -> State:
        """Return c_k = 0."""
        return {"control": _zeros(received["weights"])}

    def prepare_state(self, received: Parts, state: State, update: ClientUpdate) -> State:
        """Add the sum of gradients of option I, zero."""
        if self.option == "ii":
            return state
        return state | {"gradient": _zeros(received["weights"]), "count": {"count": torch.zeros_like(update.num_steps)}}

    def extra_params(self, model: ModelInfo, received: Parts, state: State, update: ClientUpdate) -> dict[str, Weights]:
        """Return the received model, for the gradients of option I."""
        return {} if self.option == "ii" else {"anchor": dict(received["weights"])}

    def download(self, server: Server) -> Parts:
        """Return the global model and c."""
        return {"weights": server.weights, "control": server.state["control"]}

    def loss(
        self,
        outputs: dict[str, Outputs],
        batch: Batch,
        trained: Weights,
        received: Parts,
        state: State,
        update: ClientUpdate,
    ) -> Loss:
        """Return the task loss plus ⟨w, c − c_k⟩, whose gradient is the correction."""
        drift = {name: c - state["control"][name] for name, c in received["control"].items()}
        return Loss.from_outputs(outputs["student"], client_term=dot(trained, drift))

    def anchor_loss(
        self,
        outputs: dict[str, Outputs],
        batch: Batch,
        trained: Weights,
        received: Parts,
        state: State,
        update: ClientUpdate,
    ) -> Loss:
        """Return the task loss of the received model."""
        return Loss.from_outputs(outputs["anchor"])

    def needs_after_step(self) -> bool:
        """Return True for option I, which sums gradients."""
        return self.option == "i"

    def after_step(
        self,
        outputs: dict[str, Outputs],
        gradients: tuple[Weights, ...],
        batch: Batch,
        trained: Weights,
        received: Parts,
        state: State,
        update: ClientUpdate,
    ) -> State:
        """Add the batch's gradient at the received model, weighted by the batch."""
        weight, count = outputs["anchor"].require("loss_weights").sum(), state["count"]["count"]
        total = {name: g + weight * gradients[1][ANCHOR + name] for name, g in state["gradient"].items()}
        return state | {"gradient": total, "count": {"count": count + weight}}

    def upload(self, trained: Weights, received: Parts, state: State, update: ClientUpdate) -> Parts:
        """Return the delta and c_k⁺ − c_k."""
        delta = {name: trained[name] - w for name, w in received["weights"].items()}
        moved = (update.num_steps > 0).float()  # a client without examples sends no change
        if self.option == "i":
            count = state["count"]["count"].clamp_min(1e-12)
            change = {name: moved * (g / count - state["control"][name]) for name, g in state["gradient"].items()}
        else:
            length = update.total_rate.clamp_min(1e-12)
            change = {name: -moved * (d / length + received["control"][name]) for name, d in delta.items()}
        return {"weights": delta, "control": change}

    def update_state(self, sent: Parts, trained: Weights, received: Parts, state: State, update: ClientUpdate) -> State:
        """Add the decoded change, so that the sum of all c_k stays N·c under a lossy codec."""
        return {"control": {name: c + sent["control"][name] for name, c in state["control"].items()}}

    def aggregate(self, server: Server, aggregated: AggregatedUpdates) -> tuple[Weights, State]:
        """Return the mean delta and the new c."""
        share = aggregated.num_sampled / aggregated.num_clients
        control = {name: c + share * aggregated.means["control"][name] for name, c in server.state["control"].items()}
        return aggregated.means["weights"], {"control": control}


def _zeros(weights: Weights) -> Weights:
    return {name: torch.zeros_like(w) for name, w in weights.items()}
