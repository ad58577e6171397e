"""FedP³: Lao et al. 2023, "FedVQA: personalized federated visual question answering over heterogeneous scenes".

    p^T, p^S   predictions of the received and of the trained model        H   their entropies, −Σ p log p
    M_ij       1/(1 + e^{−2(p_i − p_j)}), preference for answer i over j (eq. 9)
    r          softmax( log p^T − log(H_T/H_S)·log p^S )  (eq. 12)      A   the `top` answers of r, without gradient
    loss = CE + weight·Σ_{i,j ∈ A} |M^T_ij − M^S_ij|  (eqs. 14, 15)

Eq. 13 is printed without its minus, and Algorithm 1 without lambda and with the sign of CE reversed; this is the
intended version of both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from simfl.algorithms.base import Algorithm
from simfl.algorithms.distill import RECEIVED, active_from, divergence, log_probs, per_example
from simfl.constraints import NonNegativeFloat, PositiveFloat, PositiveInt
from simfl.errors import ConfigError
from simfl.keyed_random import step_uniform
from simfl.protocol import Batch, ClientUpdate, Forward, Loss, Outputs, Parts, State, Weights

Filter = Literal["forgotten", "ratio", "teacher", "student", "uniform"]


@dataclass(frozen=True)
class FedP3(Algorithm):
    """FedAvg whose clients preserve the received model's preferences among the answers that they tend to forget.

    The paper's personal models are the model `local`. Its ablations: `preserve: divergence` is KP, `pairs` is DPP
    without the filter; `filter` selects r: eq. 12, eq. 11, p^T, p^S, or random numbers.
    """

    weight: NonNegativeFloat = 1.0  # lambda
    preserve: Literal["filtered", "pairs", "divergence"] = "filtered"  # filtered pairs, all pairs, or KL(p^T ‖ p^S)
    filter: Filter = "forgotten"  # forgotten (eq. 12) | ratio (eq. 11) | teacher | student | uniform
    top: PositiveInt = 20  # number of answers that the filter selects
    compare: Literal["probabilities", "logits"] = "probabilities"  # p of eq. 9; the paper names both
    temperature: PositiveFloat = 1.0  # of predictions, or of the divergence
    from_round: PositiveInt = 2  # of the phase (eq. 15)

    needs_logits: ClassVar[bool] = True
    fedavg_limit: ClassVar[str] = "weight = 0, and before `from_round`"
    fedavg_settings: ClassVar[Mapping[str, object] | None] = {"algorithm.weight": 0.0}

    def __post_init__(self) -> None:
        """Raise ConfigError for settings of a filter that has no effect."""
        if self.preserve != "filtered" and (self.filter, self.top) != ("forgotten", 20):
            raise ConfigError(f"filter: {self.filter} of {self.top} has no effect with preserve: {self.preserve}")

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
        """Return the task loss with the distance of preferences."""
        lost = self._lost(outputs["teacher"], outputs["student"], update)
        weight = self.weight * active_from(update, self.from_round)
        return Loss.from_outputs(outputs["student"], example_terms=weight * lost)

    def _lost(self, teacher: Outputs, student: Outputs, update: ClientUpdate) -> Tensor:
        """Return the distance of the student from the teacher, per example [B]."""
        if self.preserve == "divergence":
            return divergence(teacher, student, self.temperature)
        scores = [out.logits / self.temperature for out in (teacher.detach(), student)]
        values = [s.softmax(-1) for s in scores] if self.compare == "probabilities" else scores
        if self.preserve == "filtered":
            rank = FILTERS[self.filter](log_probs(scores[0]), log_probs(scores[1].detach()), update)
            chosen = rank.topk(min(self.top, rank.shape[-1]), dim=-1).indices
            values = [v.gather(-1, chosen) for v in values]
        gap = preferences(values[0]) - preferences(values[1])
        return per_example(gap.abs().sum((-1, -2)), student)


def preferences(values: Tensor) -> Tensor:
    """Return M [..., N, N] of values [..., N]."""
    return torch.sigmoid(2.0 * (values[..., :, None] - values[..., None, :]))


def forgotten(teacher: Tensor, student: Tensor, update: ClientUpdate) -> Tensor:
    """Return log r of eq. 12 up to a constant; the entropies are at least 1e-6."""
    gain = entropy(teacher).clamp_min(1e-6) / entropy(student).clamp_min(1e-6)
    return teacher - gain.log()[..., None] * student


def entropy(logs: Tensor) -> Tensor:
    """Return H [...] of log-probabilities [..., V]."""
    return -(logs.exp() * logs).sum(-1)


def _uniform(teacher: Tensor, student: Tensor, update: ClientUpdate) -> Tensor:
    names = torch.arange(teacher[..., 0].numel(), device=teacher.device)
    return step_uniform(update.key, update.step, names, teacher.shape[-1]).reshape(teacher.shape)


FILTERS = {
    "forgotten": forgotten,
    "ratio": lambda teacher, student, update: teacher - student,
    "teacher": lambda teacher, student, update: teacher,
    "student": lambda teacher, student, update: student,
    "uniform": _uniform,
}
