"""DKD: Zhao et al. 2022, "Decoupled knowledge distillation", with the received model as teacher.

t    the target class          p    softmax(logits/τ)            b   (p_t, 1 − p_t)       p̂   softmax without t
loss = CE + ramp·τ²·(alpha·KL(b^T ‖ b^S) + beta·KL(p̂^T ‖ p̂^S));     KL(p^T ‖ p^S) is the same with beta = 1 − p^T_t
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from simfl.algorithms.base import Algorithm
from simfl.algorithms.distill import FLOOR, RECEIVED, active_from, log_probs, per_example
from simfl.constraints import NonNegativeFloat, PositiveFloat, PositiveInt
from simfl.protocol import Batch, ClientUpdate, Forward, Loss, Outputs, Parts, State, Weights


@dataclass(frozen=True)
class Dkd(Algorithm):
    """FedAvg with distillation of the target class and of the other classes, weighted separately.

    Needs an objective with a target class per example, or a target token per position.
    """

    alpha: NonNegativeFloat = 1.0  # weight of the target class against all others
    beta: NonNegativeFloat = 8.0  # weight of the distribution among the others
    temperature: PositiveFloat = 4.0  # tau
    ramp_rounds: NonNegativeFloat = 0.0  # rounds of linear growth of both weights; 0: none; reference: 20 epochs
    from_round: PositiveInt = 2  # of the phase; the model received in the first round is no teacher yet
    needs_logits: ClassVar[bool] = True
    fedavg_limit: ClassVar[str] = "alpha = beta = 0, and before `from_round`"
    fedavg_settings: ClassVar[Mapping[str, object] | None] = {"algorithm.alpha": 0.0, "algorithm.beta": 0.0}
    needs_targets: ClassVar[bool] = True

    def forwards(self) -> dict[str, Forward]:
        """Return the passes of the trained and the received model."""
        return {"student": Forward(), "teacher": RECEIVED}

    def loss(
        self,
        outputs: dict[str, Outputs],
        batch: Batch,
        trained: Weights,
        received: Parts,
        state: State,
        update: ClientUpdate,
    ) -> Loss:
        """Return the task loss with both divergences."""
        student, teacher = outputs["student"], outputs["teacher"].logits.detach() / self.temperature
        target, others = decoupled(teacher, student.logits / self.temperature, student.require("targets"))
        taught = per_example(self.alpha * target + self.beta * others, student) * self.temperature**2
        ramp = active_from(update, self.from_round) * self._ramp(update)
        return Loss.from_outputs(student, example_terms=ramp * taught)

    def _ramp(self, update: ClientUpdate) -> Tensor:
        if self.ramp_rounds == 0.0:
            return torch.ones_like(update.num_steps)
        return ((update.round + update.step / update.num_steps.clamp_min(1.0)) / self.ramp_rounds).clamp_max(1.0)


def decoupled(teacher: Tensor, student: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the divergences of target against rest, and among the rest, both [...].

    `teacher` and `student` are logits [..., V], `targets` are classes [...]. The target is masked out of the softmax,
    where the reference subtracts 1000 from its logit. A negative target (no label) counts as class 0; the caller masks
    it.
    """
    is_target = torch.zeros_like(student, dtype=torch.bool).scatter(-1, targets.clamp_min(0)[..., None], True)
    log_p, log_q = log_probs(teacher), log_probs(student)
    zero = torch.zeros_like(log_p)

    def split(logs: Tensor) -> tuple[Tensor, Tensor]:
        rest = logs.masked_fill(is_target, 2 * FLOOR).logsumexp(-1)
        return torch.where(is_target, logs, zero).sum(-1), rest

    (p_t, p_rest), (q_t, q_rest) = split(log_p), split(log_q)
    binary = p_t.exp() * (p_t - q_t) + p_rest.exp() * (p_rest - q_rest)
    gap = torch.where(is_target, zero, (log_p - p_rest[..., None]) - (log_q - q_rest[..., None]))
    others = torch.where(is_target, zero, (log_p - p_rest[..., None]).exp())
    return binary, (others * gap).sum(-1)
