"""FedP³: Lao et al. 2023, "FedVQA: personalized federated visual question answering over heterogeneous scenes".

    p^T, p^S   predictions of the received and of the trained model        H   their entropies, −Σ p log p
    M_ij       1/(1 + e^{−2(p_i − p_j)}), how surely answer i beats j (eq. 9)
    r          softmax( log p^T − log(H_T/H_S)·log p^S )  (eq. 12)      A   the `top` answers of r, taken as constant
    loss = CE + weight·Σ_{i,j ∈ A} |M^T_ij − M^S_ij|  (eqs. 14, 15)

Eq. 13 is printed without its minus and Algorithm 1 without lambda and with CE's sign turned; both as meant here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from simfl.algorithms.base import Algorithm
from simfl.algorithms.chance import uniform
from simfl.algorithms.distill import RECEIVED, begun, divergence, log_chances, per_example
from simfl.constraints import NonNegativeFloat, PositiveFloat, PositiveInt
from simfl.errors import ConfigError
from simfl.protocol import Batch, ClientUpdate, Forward, Loss, Outputs, Parts, State, Weights

Filter = Literal["forgotten", "ratio", "teacher", "student", "uniform"]


@dataclass(frozen=True)
class FedP3(Algorithm):
    """Clients keep which answers the received model prefers to which, among those they are about to forget.

    weight 0 is FedAvg. The paper's personal models are `local`. Its ablations: `preserve: divergence` is KP,
    `pairs` is DPP without the filter; `filter` names what r is: eq. 12, eq. 11, p^T, p^S, or chance.
    """

    weight: NonNegativeFloat = 1.0  # lambda
    preserve: Literal["filtered", "pairs", "divergence"] = "filtered"  # filtered pairs, all pairs, or KL(p^T ‖ p^S)
    filter: Filter = "forgotten"  # forgotten (eq. 12) | ratio (eq. 11) | teacher | student | uniform
    top: PositiveInt = 20  # answers that stay
    compare: Literal["probabilities", "logits"] = "probabilities"  # of answers; the paper says both
    temperature: PositiveFloat = 1.0  # of predictions, or of the divergence
    from_round: PositiveInt = 2  # of the phase, as in eq. 15

    fedavg_limit: ClassVar[str] = "weight = 0, and before `from_round`"

    def __post_init__(self) -> None:
        """Refuses settings of a filter that is not asked for."""
        if self.preserve != "filtered" and (self.filter, self.top) != ("forgotten", 20):
            raise ConfigError(f"filter: {self.filter} of {self.top} has no effect with preserve: {self.preserve}")

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
        kept = self._lost(outputs["teacher"], outputs["student"], update)
        return Loss.from_outputs(outputs["student"], example_terms=self.weight * begun(update, self.from_round) * kept)

    def _lost(self, teacher: Outputs, student: Outputs, update: ClientUpdate) -> Tensor:
        """What the student no longer knows, per example [B]."""
        if self.preserve == "divergence":
            return divergence(teacher, student, self.temperature)
        scores = [out.logits / self.temperature for out in (teacher.detach(), student)]
        values = [s.softmax(-1) for s in scores] if self.compare == "probabilities" else scores
        if self.preserve == "filtered":
            rank = FILTERS[self.filter](log_chances(scores[0]), log_chances(scores[1].detach()), update)
            chosen = rank.topk(min(self.top, rank.shape[-1]), dim=-1).indices
            values = [v.gather(-1, chosen) for v in values]
        gap = preferences(values[0]) - preferences(values[1])
        return per_example(gap.abs().sum((-1, -2)), student)


def preferences(values: Tensor) -> Tensor:
    """M [..., N, N] of values [..., N]."""
    return torch.sigmoid(2.0 * (values[..., :, None] - values[..., None, :]))


def forgotten(teacher: Tensor, student: Tensor, update: ClientUpdate) -> Tensor:
    """log r of eq. 12 but for a constant; the student's entropy is kept off zero."""
    gain = entropy(teacher).clamp_min(1e-6) / entropy(student).clamp_min(1e-6)
    return teacher - gain.log()[..., None] * student


def entropy(logs: Tensor) -> Tensor:
    """H [...] of log-probabilities [..., V]."""
    return -(logs.exp() * logs).sum(-1)


def _chance(teacher: Tensor, student: Tensor, update: ClientUpdate) -> Tensor:
    places = torch.arange(teacher[..., 0].numel(), device=teacher.device)
    return uniform(update, places, teacher.shape[-1]).reshape(teacher.shape)


FILTERS = {
    "forgotten": forgotten,
    "ratio": lambda teacher, student, update: teacher - student,
    "teacher": lambda teacher, student, update: teacher,
    "student": lambda teacher, student, update: student,
    "uniform": _chance,
}
