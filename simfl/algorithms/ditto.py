"""Ditto: Li et al. 2021, "Ditto: fair and robust federated learning through personalization"."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

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

OWN = f"{EXTRA}/personal/"


@dataclass(frozen=True)
class Ditto(Algorithm):
    """FedAvg, and beside it a personal model per client, pulled to the received one by (strength/2)·‖v − w‖².

    Each batch steps both models, each with an optimizer of its own. With strength 0 the personal models are those of
    clients that train alone.
    """

    strength: float = 0.1  # lambda in the paper: how close personal models stay

    fedavg_limit: ClassVar[str] = "always"

    def forwards(self) -> dict[str, Forward]:
        return {"student": Forward(), "personal": Forward(sources=(("*", "extra:personal"),))}

    def micro_steps(self) -> tuple[MicroStep, ...]:
        return (
            MicroStep(forwards=("student",), loss=self.loss, excludes=(OWN + "*",)),
            MicroStep(forwards=("personal",), loss=self.personal_loss, trains=(OWN + "*",)),
        )

    def init_client(self, received: Parts, update: ClientUpdate) -> State:
        return {"personal": dict(received["weights"])}

    def extra_params(self, model: ModelInfo, received: Parts, state: State, update: ClientUpdate) -> dict[str, Weights]:
        return {"personal": state["personal"]}

    def personal_loss(
        self,
        outputs: dict[str, Outputs],
        batch: Batch,
        trained: Weights,
        received: Parts,
        state: State,
        update: ClientUpdate,
    ) -> Loss:
        """The task's loss of the personal model, and its pull."""
        pull = squared_norm({name: trained[OWN + name] - w for name, w in received["weights"].items()})
        return Loss.from_outputs(outputs["personal"], client_term=0.5 * self.strength * pull)

    def update_state(self, sent: Parts, trained: Weights, received: Parts, state: State, update: ClientUpdate) -> State:
        return {"personal": {name: trained[OWN + name] for name in received["weights"]}}

    def eval_weights(self, weights: Weights, state: State) -> dict[str, Weights]:
        return {"global": weights, "personal": {**weights, **state.get("personal", {})}}
