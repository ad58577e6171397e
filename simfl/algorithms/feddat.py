"""FedDAT: Chen et al. 2024, "FedDAT: an approach for foundation model finetuning in multi-modal heterogeneous FL".

    A_s   the shared adapter, averaged by the server      A_c   the client's adapter, never sent
    Â_s   A_s as received, frozen for the round           DAT   the dual teacher h + ½Â_s(h) + ½A_c(h)  (eq. 4)
    L_s = CE_s + alpha·KL(DAT ‖ s)                        L_DAT = CE_DAT + beta·KL(s ‖ DAT)  (eqs. 5 to 7)

Eq. 5 prints both divergences with their sides exchanged; the published code has them as above, the teacher first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from simfl.algorithms.base import Algorithm
from simfl.algorithms.distill import divergence
from simfl.constraints import NonNegativeFloat, PositiveFloat
from simfl.protocol import Batch, ClientUpdate, Forward, Loss, MicroStep, Outputs, Parts, State, Weights

SHARED, CLIENT = "*adapter_shared*", "*adapter_client*"
TEACHERS = {
    "dual": Forward(sources=((SHARED, "received"), ("*", "trained")), branch="dual"),
    "client": Forward(branch="client"),
    "received": Forward(sources=((SHARED, "received"), ("*", "trained")), branch="shared"),
}
PRESETS = {  # the paper states an exponential ramp of alpha and beta without constants; the code has none
    "paper": {"alpha": 1.0, "beta": 1.0, "ramp_rounds": 5.0, "temperature": 1.0, "scale": 1.0},
    "code": {"alpha": 1.0, "beta": 1.0, "ramp_rounds": 0.0, "temperature": 3.0, "scale": 0.5},
}


@dataclass(frozen=True)
class FedDat(Algorithm):
    """Mutual distillation between a shared and a client adapter; needs `adapters: {kind: bottleneck}`.

    Clients upload A_s alone. Settings left null are the preset's. The paper's ablations: `teacher: client` is without
    Â_s, `received` without A_c, `beta: 0` without mutual distillation; the models `client` and `dual` are inference
    with A_c and with DAT. With alpha = beta = 0 and frozen heads, A_s is trained as by FedAvg.
    """

    preset: Literal["paper", "code"] = "paper"  # paper: a ramp of 5 rounds | code: temperature 3, scale 0.5, no ramp
    alpha: NonNegativeFloat | None = None  # weight of the divergence that the shared adapter learns; presets: 1
    beta: NonNegativeFloat | None = None  # weight of the divergence that the dual teacher learns; presets: 1
    ramp_rounds: NonNegativeFloat | None = None  # alpha and beta grow as exp(−5(1 − t)²) over these rounds; 0: constant
    temperature: PositiveFloat | None = None  # softens both sides of each divergence, which is multiplied by its square
    scale: PositiveFloat | None = None  # of both losses as a whole
    teacher: Literal["dual", "client", "received"] = "dual"  # DAT, A_c alone, Â_s alone (which learns nothing)
    direction: Literal["teacher", "student"] = "teacher"  # KL(teacher ‖ student), or KL(student ‖ teacher) as printed
    form: Literal["micro", "joint"] = "micro"  # two optimizer steps a batch (A_s and heads, A_c and heads), or one
    needs_logits: ClassVar[bool] = True
    fedavg_limit: ClassVar[str] = "alpha = beta = 0, frozen heads"
    fedavg_settings: ClassVar[Mapping[str, object] | None] = {
        "algorithm.alpha": 0.0,
        "algorithm.beta": 0.0,
        "train": [],
        "personal_params": [CLIENT],
    }
    example: ClassVar[Mapping[str, object]] = {
        "model.adapters": {"kind": "bottleneck"},
        "train": ["head.*"],
        "personal_params": ["head.*"],
    }
    personal_params: ClassVar[tuple[str, ...]] = (CLIENT,)
    needs_whole_batch: ClassVar[bool] = True
    eval_models: ClassVar[Mapping[str, Forward]] = {
        "global": Forward(branch="shared"),
        "personal": Forward(branch="shared"),
        "client": Forward(branch="client"),
        "dual": Forward(branch="dual"),
    }

    def forwards(self) -> dict[str, Forward]:
        """Return the passes of A_s, and of the teacher without and with gradient."""
        dual = TEACHERS[self.teacher]
        return {"teacher": replace(dual, grad=False), "shared": Forward(branch="shared"), "dual": dual}

    def micro_steps(self) -> tuple[MicroStep, ...]:
        """Return a step of A_s against DAT, then one of A_c against A_s, or one joint step.

        Both compare with the outputs from before the first step.
        """
        shared = MicroStep(forwards=("teacher", "shared"), loss=self.shared_loss, excludes=(CLIENT,))
        if self.teacher == "received":
            return (shared,)
        if self.form == "joint":
            return (MicroStep(forwards=("shared", "dual"), loss=self.loss),)
        return (shared, MicroStep(forwards=("dual",), loss=self.dual_loss, excludes=(SHARED,)))

    def shared_loss(
        self,
        outputs: dict[str, Outputs],
        batch: Batch,
        trained: Weights,
        received: Parts,
        state: State,
        update: ClientUpdate,
    ) -> Loss:
        """Return L_s."""
        return self._side(outputs["shared"], outputs["teacher"], "alpha", update)

    def dual_loss(
        self,
        outputs: dict[str, Outputs],
        batch: Batch,
        trained: Weights,
        received: Parts,
        state: State,
        update: ClientUpdate,
    ) -> Loss:
        """Return L_DAT."""
        return self._side(outputs["dual"], outputs["shared"], "beta", update)

    def loss(
        self,
        outputs: dict[str, Outputs],
        batch: Batch,
        trained: Weights,
        received: Parts,
        state: State,
        update: ClientUpdate,
    ) -> Loss:
        """Return L_s + L_DAT; the reported task loss is that of the shared adapter."""
        shared = self._side(outputs["shared"], outputs["dual"], "alpha", update)
        dual = self._side(outputs["dual"], outputs["shared"], "beta", update)
        return replace(shared, client_term=dual.total(batch["mask"]))

    def eval_weights(self, weights: Weights, state: State) -> dict[str, Weights]:
        """Return the same tensors for every model: their passes differ in the branch."""
        return dict.fromkeys(self.eval_models, weights)

    def _side(self, student: Outputs, teacher: Outputs, weight: str, update: ClientUpdate) -> Loss:
        taught = self._divergence(teacher, student) * self._value(weight) * self._ramp(update)
        scale = self._value("scale")
        return Loss(scale * student.require("loss_sums"), student.require("loss_weights"), example_terms=scale * taught)

    def _divergence(self, teacher: Outputs, student: Outputs) -> Tensor:
        temperature = self._value("temperature")
        if self.direction == "teacher":
            return divergence(teacher, student, temperature)
        return divergence(student, teacher, temperature, learns="first")

    def _ramp(self, update: ClientUpdate) -> Tensor:
        """Return 1, or the exponential ramp-up of Laine and Aila 2017, with t from 0 to 1 over `ramp_rounds`."""
        rounds = self._value("ramp_rounds")
        if rounds == 0.0:
            return torch.ones_like(update.num_steps)
        done = (update.round + update.step / update.num_steps.clamp_min(1.0)) / rounds
        return torch.exp(-5.0 * (1.0 - done.clamp_max(1.0)).square())

    def _value(self, name: str) -> float:
        given: float | None = getattr(self, name)
        return PRESETS[self.preset][name] if given is None else given
