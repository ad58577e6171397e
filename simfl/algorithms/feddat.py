"""FedDAT: Chen et al. 2024, "FedDAT: an approach for foundation model finetuning in multi-modal federated learning".

A_s   the shared adapter, averaged by the server      A_c   the client's adapter, never sent
Â_s   A_s as received, frozen for the round           DAT   the dual teacher h + ½Â_s(h) + ½A_c(h)
L_s = CE_s + alpha·KL(DAT ‖ s)                        L_DAT = CE_DAT + beta·KL(s ‖ DAT)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from simfl.algorithms.base import Algorithm
from simfl.algorithms.distill import divergence
from simfl.protocol import Batch, Forward, Loss, MicroStep, Outputs, Parts, State, Visit, Weights
from simfl.ranges import Positive

SHARED, CLIENT = "*adapter_shared*", "*adapter_client*"
DUAL = Forward(sources=((SHARED, "received"), ("*", "trained")), branch="dual")


@dataclass(frozen=True)
class FedDat(Algorithm):
    """Shared and client adapters that teach each other (needs `adapters: {kind: bottleneck}`). Travels: A_s alone.

    `form: micro` is the published code's step (A_s and head, then A_c and head, against the logits from before the
    first); `joint` takes both gradients at once. With alpha = beta = 0 and frozen heads, A_s moves as under FedAvg.
    """

    alpha: float = 1.0  # weight of what the shared adapter learns from the dual teacher
    beta: float = 1.0  # weight of what the dual teacher learns back
    ramp_rounds: float = 0.0  # alpha and beta grow as exp(−5(1 − t)²) over these rounds; 0: constant
    temperature: Positive = 1.0  # softens both sides of each divergence (the published code: 3)
    scale: Positive = 1.0  # of both losses as a whole (the published code: 0.5)
    form: Literal["micro", "joint"] = "micro"  # two optimizer steps a batch, or one
    private: ClassVar[tuple[str, ...]] = (CLIENT,)

    def forwards(self) -> dict[str, Forward]:
        return {"teacher": replace(DUAL, grad=False), "shared": Forward(branch="shared"), "dual": DUAL}

    def micro_steps(self) -> tuple[MicroStep, ...]:
        if self.form == "joint":
            return (MicroStep(runs=("shared", "dual"), loss=self.loss),)
        return (
            MicroStep(runs=("teacher", "shared"), loss=self.shared_loss, spares=(CLIENT,)),
            MicroStep(runs=("dual",), loss=self.dual_loss, spares=(SHARED,)),
        )

    def shared_loss(
        self, outputs: dict[str, Outputs], batch: Batch, trained: Weights, received: Parts, state: State, visit: Visit
    ) -> Loss:
        """L_s, taught by the dual adapters."""
        return self._side(outputs["shared"], outputs["teacher"], self.alpha * self._ramp(visit))

    def dual_loss(
        self, outputs: dict[str, Outputs], batch: Batch, trained: Weights, received: Parts, state: State, visit: Visit
    ) -> Loss:
        """L_DAT, taught by the shared adapter."""
        return self._side(outputs["dual"], outputs["shared"], self.beta * self._ramp(visit))

    def loss(
        self, outputs: dict[str, Outputs], batch: Batch, trained: Weights, received: Parts, state: State, visit: Visit
    ) -> Loss:
        """L_s + L_DAT; the reported task loss is that of the shared adapter."""
        shared = self._side(outputs["shared"], outputs["dual"], self.alpha * self._ramp(visit))
        dual = self._side(outputs["dual"], outputs["shared"], self.beta * self._ramp(visit))
        return replace(shared, client=dual.total(batch["mask"]))

    def _side(self, student: Outputs, teacher: Outputs, weight: Tensor) -> Loss:
        taught = weight * divergence(teacher, student, self.temperature)
        return Loss(self.scale * student.need("sums"), student.need("weights"), examples=self.scale * taught)

    def _ramp(self, visit: Visit) -> Tensor:
        """alpha(t)/alpha: 1, or the exponential ramp-up of Laine and Aila 2017, t from 0 to 1 over `ramp_rounds`."""
        if self.ramp_rounds == 0.0:
            return torch.ones_like(visit.steps)
        done = (visit.round + visit.step / visit.steps.clamp_min(1.0)) / self.ramp_rounds
        return torch.exp(-5.0 * (1.0 - done.clamp_max(1.0)).square())
