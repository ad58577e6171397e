"""Ditto: Li et al. 2021, "Ditto: fair and robust federated learning through personalization".

local step   θ ← θ − eta·∇f(θ),    v ← v − eta·∇( f(v) + (strength/2)·‖v − w‖² )      θ, w   trained and received model
                                                                                      v      personal model
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from simfl.algorithms.base import Algorithm
from simfl.protocol import (
    EXTRA,
    Batch,
    ClientUpdate,
    Forward,
    Loss,
    MicroStep,
    ModelInfo,
    Outputs,
    Parts,
    State,
    Weights,
)
from simfl.weights import squared_norm

PERSONAL = f"{EXTRA}/personal/"
PERSONAL_PASS = Forward(sources=(("*", "extra:personal"),))


@dataclass(frozen=True)
class Ditto(Algorithm):
    """FedAvg, with a personal model per client that is pulled towards the received model.

    Each batch steps both models, each with an optimizer of its own. With strength 0 the personal models are those of
    clients that train alone.
    """

    strength: float = 0.1  # lambda in the paper: how close personal models stay
    start: Literal["initial", "received"] = "initial"  # model that a client's first update begins its personal model at

    eval_models: ClassVar[Mapping[str, Forward]] = {"global": Forward(), "personal": PERSONAL_PASS}
    fedavg_limit: ClassVar[str] = "always"
    fedavg_settings: ClassVar[Mapping[str, object] | None] = {}

    def forwards(self) -> dict[str, Forward]:
        """Return the passes of the shared and the personal model."""
        return {"student": Forward(), "personal": PERSONAL_PASS}

    def micro_steps(self) -> tuple[MicroStep, ...]:
        """Return a step of the shared model, then one of the personal model."""
        return (
            MicroStep(forwards=("student",), loss=self.loss, excludes=(PERSONAL + "*",)),
            MicroStep(forwards=("personal",), loss=self.personal_loss, trains=(PERSONAL + "*",)),
        )

    def init_client(self, received: Parts, update: ClientUpdate) -> State:
        """Return the received model as personal model, or nothing where it starts at the initial weights."""
        return {"personal": dict(received["weights"])} if self.start == "received" else {}

    def extra_params(self, model: ModelInfo, received: Parts, state: State, update: ClientUpdate) -> dict[str, Weights]:
        """Return the personal model, at first the initial weights of the phase."""
        return {
            "personal": state.get("personal") or {name: model.initial_weights[name] for name in received["weights"]}
        }

    def personal_loss(
        self,
        outputs: dict[str, Outputs],
        batch: Batch,
        trained: Weights,
        received: Parts,
        state: State,
        update: ClientUpdate,
    ) -> Loss:
        """Return the task loss of the personal model with its proximal term."""
        distance = squared_norm({name: trained[PERSONAL + name] - w for name, w in received["weights"].items()})
        return Loss.from_outputs(outputs["personal"], client_term=0.5 * self.strength * distance)

    def update_state(self, sent: Parts, trained: Weights, received: Parts, state: State, update: ClientUpdate) -> State:
        """Keep the personal model."""
        return {"personal": {name: trained[PERSONAL + name] for name in received["weights"]}}

    def eval_weights(self, weights: Weights, state: State) -> dict[str, Weights]:
        """Return the global and the personal model."""
        return {"global": weights, "personal": {**weights, **state.get("personal", {})}}
