"""CLGECL: consensus by dual variables on a star (Tyou et al. 2024; without noise, Algorithm 2 of Tito et al. 2024).

w     received model          x_k   the client's model after its last step     step   1: averaged, 2: Peaceman-Rachford
λ_k   its dual variable       w'_k  the model it last released: w at that time + its upload

client, penalty 0    λ_k ← λ_k + step·(w − w'_k),   send x_k − w + λ_k                   (initially λ_k = 0, w'_k = w)
client, penalty η    y_k ← y_k + step·(w − x_k),    x_k ≈ argmin f_k(θ) + (η/2)·‖θ − y_k‖²,
                     send 2x_k − y_k − w                                               (initially y_k = x_k = w)
server               w ← w + mean of the uploads
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from simfl.algorithms.base import Algorithm
from simfl.constraints import NonNegativeFloat
from simfl.protocol import Batch, ClientUpdate, Loss, Outputs, Parts, State, Weights
from simfl.weights import squared_norm

STEPS = {"averaged": 1.0, "peaceman_rachford": 2.0}


@dataclass(frozen=True)
class Clgecl(Algorithm):
    """Clients correct their uploads by how far the global model has moved from what they released before.

    With penalty 0, as for PFL-DocVQA's Track 2, training is unchanged and a first update is FedAvg's; with full
    participation all updates are. With a penalty it is operator splitting, whose fixed point is a minimum of the
    clients' summed losses.
    """

    form: Literal["averaged", "peaceman_rachford"] = "averaged"  # step of the dual: 1, or 2 for the full reflection
    penalty: NonNegativeFloat = 0.0  # eta: pull of local training to the dual; 0: the dual only corrects the upload
    fedavg_limit: ClassVar[str] = "in the first round; penalty = 0 with full participation"
    fedavg_settings: ClassVar[Mapping[str, object] | None] = {"rounds": 1, "weighting": "uniform"}
    reduce: ClassVar[Mapping[str, str]] = {"weights": "clients"}

    def init_client(self, received: Parts, update: ClientUpdate) -> State:
        """Return the initial dual and the received model as last release."""
        start = received["weights"]
        dual = dict(start) if self.penalty else {name: torch.zeros_like(w) for name, w in start.items()}
        return {"dual": dual, "last": dict(start)}

    def prepare_state(self, received: Parts, state: State, update: ClientUpdate) -> State:
        """Update the dual."""
        step, last = STEPS[self.form], state["last"]
        dual = {name: y + step * (received["weights"][name] - last[name]) for name, y in state["dual"].items()}
        return {"dual": dual, "last": last}

    def loss(
        self,
        outputs: dict[str, Outputs],
        batch: Batch,
        trained: Weights,
        received: Parts,
        state: State,
        update: ClientUpdate,
    ) -> Loss:
        """Return the task loss, pulled towards the dual if there is a penalty."""
        if not self.penalty:
            return Loss.from_outputs(outputs["student"])
        distance = squared_norm({name: trained[name] - y for name, y in state["dual"].items()})
        return Loss.from_outputs(outputs["student"], client_term=0.5 * self.penalty * distance)

    def upload(self, trained: Weights, received: Parts, state: State, update: ClientUpdate) -> Parts:
        """Return the delta corrected by the dual, or the reflected model."""
        dual, start = state["dual"], received["weights"]
        if self.penalty:
            return {"weights": {name: 2.0 * trained[name] - dual[name] - w for name, w in start.items()}}
        return {"weights": {name: trained[name] - w + dual[name] for name, w in start.items()}}

    def update_state(self, sent: Parts, trained: Weights, received: Parts, state: State, update: ClientUpdate) -> State:
        """Keep the dual and the released model, as decoded: duals may depend on released values alone."""
        released = {name: w + sent["weights"][name] for name, w in received["weights"].items()}
        if self.penalty:
            released = {name: 0.5 * (w + state["dual"][name]) for name, w in released.items()}
        return {"dual": state["dual"], "last": released}
