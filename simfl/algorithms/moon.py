"""MOON: Li, He and Song 2021, "Model-contrastive federated learning".

z, z_w, z_prev   features of the trained, the received and the client's previous model      tau   temperature
loss = CE − mu·log( e^{cos(z, z_w)/tau} / (e^{cos(z, z_w)/tau} + e^{cos(z, z_prev)/tau}) )
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch.nn.functional import cosine_similarity, softplus

from simfl.algorithms.base import Algorithm
from simfl.protocol import Batch, ClientUpdate, Forward, Loss, Outputs, Parts, State, Weights


@dataclass(frozen=True)
class Moon(Algorithm):
    """Pulls features towards those of the received model and away from those of the client's previous model.

    At a client's first update the previous model is the received one: the term is log 2 and has no gradient.
    """

    mu: float = 1.0  # strength of the contrast
    tau: float = 0.5  # temperature
    fedavg_limit: ClassVar[str] = "mu = 0"
    fedavg_settings: ClassVar[Mapping[str, object] | None] = {"algorithm.mu": 0.0}
    needs_features: ClassVar[bool] = True

    def forwards(self) -> dict[str, Forward]:
        """Return the passes of the trained, the received and the previous model."""
        received = Forward(sources=(("*", "received"),), train=False, grad=False)
        previous = Forward(sources=(("*", "state:previous"),), train=False, grad=False)
        return {"student": Forward(), "received": received, "previous": previous}

    def init_client(self, received: Parts, update: ClientUpdate) -> State:
        """Return the received model as the previous one."""
        return {"previous": dict(received["weights"])}

    def loss(
        self,
        outputs: dict[str, Outputs],
        batch: Batch,
        trained: Weights,
        received: Parts,
        state: State,
        update: ClientUpdate,
    ) -> Loss:
        """Return the task loss with the contrastive term."""
        z = {name: out.require("features") for name, out in outputs.items()}
        towards = cosine_similarity(z["student"], z["received"], dim=-1) / self.tau
        away = cosine_similarity(z["student"], z["previous"], dim=-1) / self.tau
        return Loss.from_outputs(outputs["student"], example_terms=self.mu * softplus(away - towards))

    def update_state(self, sent: Parts, trained: Weights, received: Parts, state: State, update: ClientUpdate) -> State:
        """Keep the trained model."""
        return {"previous": {name: torch.clone(trained[name]) for name in received["weights"]}}
