"""FedRep: Collins et al. 2021, "Exploiting shared representations for personalized federated learning", Algorithm 1.

φ   body, shared by all clients        h_k   head, which stays on the client        tau   steps of the head
client   tau local steps of h_k with φ fixed, then the other local steps of φ with h_k fixed;   send Δφ
server   φ ← φ + mean of the Δφ
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from simfl.algorithms.base import Algorithm
from simfl.constraints import NonNegativeInt
from simfl.errors import ConfigError
from simfl.protocol import ClientUpdate, MicroStep


@dataclass(frozen=True)
class FedRep(Algorithm):
    """FedAvg of the body of a model, with personal heads that are trained first in every client update.

    The head is what the phase lists under `personal_params`. With `joint`, head and body train together after the head
    steps; with `joint` and head_steps 0 it is FedPer, that is FedAvg with a personal head.
    """

    head: str = "head.*"  # glob of the head's tensors; list it under the phase's `personal_params` too
    head_steps: NonNegativeInt = 10  # tau: first local steps, which train the head alone
    joint: bool = False  # train the head together with the body after its own steps

    fedavg_limit: ClassVar[str] = "joint, head_steps = 0"
    fedavg_settings: ClassVar[Mapping[str, object] | None] = {"algorithm.joint": True, "algorithm.head_steps": 0}
    example: ClassVar[Mapping[str, object]] = {
        "algorithm.head_steps": 2,
        "personal_params": ["head.*"],
        "local.steps": 6,
    }

    def __post_init__(self) -> None:
        """Raise ConfigError if the head is never trained."""
        if self.head_steps == 0 and not self.joint:
            raise ConfigError("head_steps: 0 never trains the head; allowed: 1 and more, or joint: true")

    def micro_steps(self) -> tuple[MicroStep, ...]:
        """Return a step of the head, then one of the body; one of the two is active in each local step."""
        student = ("student",)
        body = MicroStep(student, self.loss, active=self.body_active, excludes=() if self.joint else (self.head,))
        if self.head_steps == 0:
            return (MicroStep(student, self.loss),)
        return (MicroStep(student, self.loss, trains=(self.head,), active=self.head_active), body)

    def head_active(self, update: ClientUpdate) -> Tensor:
        """Return 1 in the first `head_steps` local steps."""
        return (update.step < self.head_steps).to(torch.float32)

    def body_active(self, update: ClientUpdate) -> Tensor:
        """Return 1 after the first `head_steps` local steps."""
        return (update.step >= self.head_steps).to(torch.float32)
