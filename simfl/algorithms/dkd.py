"""DKD: Zhao et al. 2022, "Decoupled knowledge distillation", with the received model as teacher.

t    the right class           p    softmax(logits/τ)            b   (p_t, 1 − p_t)       p̂   softmax without t
loss = CE + ramp·τ²·(alpha·KL(b^T ‖ b^S) + beta·KL(p̂^T ‖ p̂^S));     KL(p^T ‖ p^S) is the same with beta = 1 − p^T_t
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from simfl.algorithms.base import Algorithm
from simfl.algorithms.distill import FLOOR, RECEIVED, begun, log_chances, per_example
from simfl.constraints import NonNegativeFloat, PositiveFloat, PositiveInt
from simfl.protocol import Batch, ClientUpdate, Forward, Loss, Outputs, Parts, State, Weights


@dataclass(frozen=True)
class Dkd(Algorithm):
    """Distils the right class and the order of the others apart; alpha = beta = 0 is FedAvg.

    Needs an objective that knows the right class of an example, or the right piece at a position.
    """

    alpha: NonNegativeFloat = 1.0  # weight of the right class against all others
    beta: NonNegativeFloat = 8.0  # weight of the order among the others
    temperature: PositiveFloat = 4.0  # tau
    ramp_rounds: NonNegativeFloat = (
        0.0  # both weights grow linearly over these rounds (the reference: 20 epochs); 0: at once
    )
    from_round: PositiveInt = 2  # of the phase: at first the received model has nothing to teach
    fedavg_limit: ClassVar[str] = "alpha = beta = 0, and before `from_round`"
    needs_targets: ClassVar[bool] = True

    def forwards(self) -> dict[str, Forward]:
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
        student, teacher = outputs["student"], outputs["teacher"].logits.detach() / self.temperature
        target, others = decoupled(teacher, student.logits / self.temperature, student.require("targets"))
        taught = per_example(self.alpha * target + self.beta * others, student) * self.temperature**2
        return Loss.from_outputs(student, example_terms=begun(update, self.from_round) * self._ramp(update) * taught)

    def _ramp(self, update: ClientUpdate) -> Tensor:
        if self.ramp_rounds == 0.0:
            return torch.ones_like(update.num_steps)
        return ((update.round + update.step / update.num_steps.clamp_min(1.0)) / self.ramp_rounds).clamp_max(1.0)


def decoupled(teacher: Tensor, student: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Of logits [..., V] and right classes [...]: divergences of target against rest, and among the rest; both [...].

    The target is masked out of the softmax, where the reference subtracts 1000 from its logit. A negative target (no
    label) counts as class 0, for the caller to mask.
    """
    right = torch.zeros_like(student, dtype=torch.bool).scatter(-1, targets.clamp_min(0)[..., None], True)
    log_p, log_q = log_chances(teacher), log_chances(student)
    zero = torch.zeros_like(log_p)

    def split(logs: Tensor) -> tuple[Tensor, Tensor]:
        rest = logs.masked_fill(right, 2 * FLOOR).logsumexp(-1)
        return torch.where(right, logs, zero).sum(-1), rest

    (p_t, p_rest), (q_t, q_rest) = split(log_p), split(log_q)
    binary = p_t.exp() * (p_t - q_t) + p_rest.exp() * (p_rest - q_rest)
    gap = torch.where(right, zero, (log_p - p_rest[..., None]) - (log_q - q_rest[..., None]))
    among = torch.where(right, zero, (log_p - p_rest[..., None]).exp())
    return binary, (among * gap).sum(-1)
