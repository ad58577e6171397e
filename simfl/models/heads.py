"""Classification heads over pooled pairs of text and image: several in one model, answer lists of different sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from simfl.constraints import PositiveInt
from simfl.errors import ConfigError
from simfl.protocol import Task

MASKED_LOGIT = -1e9  # of an answer that a client does not have: its probability is 0, and 0 · (−1e9) is no NaN


@dataclass(frozen=True)
class HeadSpec:
    """Input and size of a head."""

    reads: Literal["one", "two", "each"] = "one"  # one pair; two pairs, concatenated; every choice, for a score each
    classes: PositiveInt | None = None  # number of answers; null: the data's number of classes


class AnswerHead(nn.Module):
    """Linear to twice the width, LayerNorm, GELU, Linear (the classifier of ViLT, FedVQA and FedDAT)."""

    def __init__(self, width: int, pairs: int, classes: int) -> None:
        super().__init__()
        self.dense = nn.Linear(pairs * width, 2 * width)
        self.norm = nn.LayerNorm(2 * width)
        self.out = nn.Linear(2 * width, classes)

    def forward(self, pooled: Tensor) -> Tensor:
        """Map [B, pairs·D] to [B, classes]."""
        return self.out(nn.functional.gelu(self.norm(self.dense(pooled))))


class ChoiceHead(nn.Module):
    """A score for each choice: dropout and Linear (CLiMB's head for VCR)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.1)
        self.out = nn.Linear(width, 1)

    def forward(self, pooled: Tensor) -> Tensor:
        """Map [B, choices, D] to [B, choices]."""
        return self.out(self.dropout(pooled)).squeeze(-1)


class Heads(nn.ModuleDict):
    """Heads by name; an example selects its head by number, in their order."""

    def __init__(self, specs: Mapping[str, HeadSpec], width: int, task: Task) -> None:
        super().__init__()
        self.reads = {name: spec.reads for name, spec in specs.items()}
        for name, spec in specs.items():
            if spec.reads == "each":
                self[name] = ChoiceHead(width)
                continue
            classes = spec.classes or task.num_classes
            if classes is None:
                raise ConfigError(
                    f"model.heads.{name}.classes: missing; the data set does not declare its number of answers"
                )
            self[name] = AnswerHead(width, 2 if spec.reads == "two" else 1, classes)

    def forward(self, pooled: Tensor, head: Tensor | None = None, num_answers: Tensor | None = None) -> Tensor:
        """Compute the logits of each example's head.

        Args:
            pooled: Pooled pairs [B, P, D].
            head: Number of each example's head [B]; the first head for all if None.
            num_answers: Length of each client's answer list [B]; all answers if None.

        Returns:
            Logits [B, size of the largest head]; those beyond the head or the list are masked.
        """
        every = [self._logits(name, pooled) for name in self]
        most = max(logits.shape[-1] for logits in every)
        padded = [nn.functional.pad(logits, (0, most - logits.shape[-1]), value=MASKED_LOGIT) for logits in every]
        logits = padded[0]
        if head is not None:
            for number, other in enumerate(padded[1:], start=1):
                logits = torch.where((head == number)[:, None], other, logits)
        if num_answers is not None:
            listed = torch.arange(most, device=logits.device) < num_answers[:, None]
            logits = torch.where(listed, logits, MASKED_LOGIT)
        return logits

    def _logits(self, name: str, pooled: Tensor) -> Tensor:
        if self.reads[name] == "each":
            return self[name](pooled)
        if self.reads[name] == "two":
            if pooled.shape[1] < 2:
                raise ConfigError(f"model.heads.{name}.reads: two, but the examples have one image; allowed: one")
            return self[name](pooled[:, :2].flatten(1))
        return self[name](pooled[:, 0])
