"""FedKD: Wu et al. 2022, "Communication-efficient federated learning via knowledge distillation".

s, t   mentee (shared, small) and mentor (the client's own)       CE, p, h   task loss, predictions, features
D      CE_s + CE_t of the example, without gradient               W          projection of features, the client's own
L_s = CE_s + ( KL(p_t ‖ p_s) + MSE(h_t, W·h_s) )/D                each loss has a gradient for its own side alone
L_t = CE_t + ( KL(p_s ‖ p_t) + MSE(h_t, W·h_s) )/D
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import linear

from simfl.algorithms.base import Algorithm
from simfl.algorithms.distill import divergence
from simfl.constraints import NonNegativeFloat, PositiveFloat
from simfl.keyed_random import step_uniform
from simfl.protocol import EXTRA, Batch, ClientUpdate, Forward, Loss, ModelInfo, Outputs, Parts, State, Weights

MENTOR = Forward(sources=(("*", "extra:mentor"),), mentor=True)
PROJECTION = f"{EXTRA}/projection/weight"


@dataclass(frozen=True)
class FedKD(Algorithm):
    """Mutual distillation between a mentor that each client keeps and a shared mentee, which alone is communicated.

    The paper also sends the mentee's deltas at low rank, in both directions: use the codec `svd`. The mentor is the
    experiment's `mentor:` network, or else a personal copy of the model. With distill = hidden = 0 the mentee is
    FedAvg's model. The paper's comparison of attention maps is left out.
    """

    distill: NonNegativeFloat = 1.0  # weight of the divergence of predictions
    hidden: NonNegativeFloat = 1.0  # weight of the distance of features
    temperature: PositiveFloat = 1.0  # softens both sides
    adaptive: bool = True  # divide by the losses of both, so that unsure teachers count less
    start: Literal["initial", "received"] = "initial"  # model that a client's first update copies as its mentor
    floor: PositiveFloat = 0.01  # smallest sum of losses to divide by (the paper has none)
    needs_logits: ClassVar[bool] = True
    fedavg_limit: ClassVar[str] = "distill = hidden = 0"
    fedavg_settings: ClassVar[Mapping[str, object] | None] = {"algorithm.distill": 0.0, "algorithm.hidden": 0.0}
    needs_whole_batch: ClassVar[bool] = True
    needs_features: ClassVar[bool] = True
    eval_models: ClassVar[Mapping[str, Forward]] = {"global": Forward(), "personal": MENTOR}

    def forwards(self) -> dict[str, Forward]:
        """Return the passes of mentee and mentor."""
        return {"student": Forward(), "mentor": MENTOR}

    def extra_params(self, model: ModelInfo, received: Parts, state: State, update: ClientUpdate) -> dict[str, Weights]:
        """Return mentor and projection; at first the mentor's initial weights and a random projection or identity."""
        if state:
            return {"mentor": state["mentor"], "projection": state["projection"]}
        assert model.outputs is not None
        assert model.mentor_outputs is not None
        narrow, wide = (out.require("features").flatten(1).shape[1] for out in (model.outputs, model.mentor_outputs))
        if narrow == wide:
            weight = torch.eye(wide, device=update.key.device)  # a copy of the model starts with equal features
        else:
            names = torch.arange(wide, device=update.key.device)
            weight = (2.0 * step_uniform(update.key, update.step, names, narrow) - 1.0) * narrow**-0.5
        copied = received["weights"] if self.start == "received" and not model.has_own_mentor else {}
        return {"mentor": {**model.mentor_weights, **copied}, "projection": {"weight": weight}}

    def loss(
        self,
        outputs: dict[str, Outputs],
        batch: Batch,
        trained: Weights,
        received: Parts,
        state: State,
        update: ClientUpdate,
    ) -> Loss:
        """Return L_s + L_t; the reported task loss is the mentee's."""
        student, mentor = outputs["student"], outputs["mentor"]
        distances = self.hidden * (
            _distance(student, mentor.detach(), trained) + _distance(student.detach(), mentor, trained)
        )
        divergences = divergence(mentor, student, self.temperature) + divergence(student, mentor, self.temperature)
        taught = (self.distill * divergences + distances) / self._divisor(student, mentor)
        mentor_loss = Loss.from_outputs(mentor).task_mean()
        return Loss.from_outputs(student, example_terms=taught, client_term=mentor_loss)

    def update_state(self, sent: Parts, trained: Weights, received: Parts, state: State, update: ClientUpdate) -> State:
        """Keep mentor and projection."""
        prefix = f"{EXTRA}/mentor/"
        mentor = {name.removeprefix(prefix): t for name, t in trained.items() if name.startswith(prefix)}
        return {"mentor": mentor, "projection": {"weight": trained[PROJECTION]}}

    def eval_weights(self, weights: Weights, state: State) -> dict[str, Weights]:
        """Return the mentee as global and the mentor as personal model."""
        return {"global": weights, "personal": {**weights, **state.get("mentor", {})}}

    def _divisor(self, student: Outputs, mentor: Outputs) -> Tensor:
        """Return D of each example [B], or ones."""
        each = [
            out.require("loss_sums").detach() / out.require("loss_weights").clamp_min(1e-12)
            for out in (student, mentor)
        ]
        both = (each[0] + each[1]).clamp_min(self.floor)
        return both if self.adaptive else torch.ones_like(both)


def _distance(student: Outputs, mentor: Outputs, trained: Weights) -> Tensor:
    """Return MSE(h_t, W·h_s) of each example [B]."""
    projected = linear(student.require("features").flatten(1), trained[PROJECTION])
    return (mentor.require("features").flatten(1) - projected).square().mean(1)
