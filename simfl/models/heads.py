"""Classifiers over pooled pairs of text and image, several in one model, and answer lists of different sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from simfl.constraints import Count
from simfl.errors import ConfigError
from simfl.protocol import Task

HIDDEN = -1e9  # logit of an answer that a client does not have: its chance is 0, and 0 · (−1e9) is no NaN


@dataclass(frozen=True)
class HeadSpec:
    """What a head reads and how many answers it has."""

    reads: Literal["one", "two", "each"] = "one"  # a pair; two pairs side by side; every choice alone, for one score
    classes: Count | None = None  # answers; null: the data's number of classes


class AnswerHead(nn.Module):
    """Linear to twice the width, LayerNorm, GELU, Linear (ViLT's classifier, and that of FedVQA and FedDAT)."""

    def __init__(self, width: int, pairs: int, classes: int) -> None:
        super().__init__()
        self.dense = nn.Linear(pairs * width, 2 * width)
        self.norm = nn.LayerNorm(2 * width)
        self.out = nn.Linear(2 * width, classes)

    def forward(self, pooled: Tensor) -> Tensor:
        """[B, pairs·D] to [B, classes]."""
        return self.out(nn.functional.gelu(self.norm(self.dense(pooled))))


class ChoiceHead(nn.Module):
    """One score for each choice: dropout and Linear (CLiMB's head for VCR)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.1)
        self.out = nn.Linear(width, 1)

    def forward(self, pooled: Tensor) -> Tensor:
        """[B, choices, D] to [B, choices]."""
        return self.out(self.dropout(pooled)).squeeze(-1)


class Heads(nn.ModuleDict):
    """Heads by name; an example says which one is its own by number, in their order."""

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
                    f"model.heads.{name}.classes: missing; the data do not say how many answers there are"
                )
            self[name] = AnswerHead(width, 2 if spec.reads == "two" else 1, classes)

    def forward(self, pooled: Tensor, head: Tensor | None = None, num_answers: Tensor | None = None) -> Tensor:
        """Logits [B, most classes] of pooled pairs [B, P, D].

        `head` [B] is each example's head (all read the first one without it); `num_answers` [B] is the length of each
        client's answer list. What lies beyond either is hidden.
        """
        every = [self._logits(name, pooled) for name in self]
        most = max(logits.shape[-1] for logits in every)
        padded = [nn.functional.pad(logits, (0, most - logits.shape[-1]), value=HIDDEN) for logits in every]
        logits = padded[0]
        if head is not None:
            for number, other in enumerate(padded[1:], start=1):
                logits = torch.where((head == number)[:, None], other, logits)
        if num_answers is not None:
            own = torch.arange(most, device=logits.device) < num_answers[:, None]
            logits = torch.where(own, logits, HIDDEN)
        return logits

    def _logits(self, name: str, pooled: Tensor) -> Tensor:
        if self.reads[name] == "each":
            return self[name](pooled)
        if self.reads[name] == "two":
            if pooled.shape[1] < 2:
                raise ConfigError(f"model.heads.{name}.reads: two, but the examples have one image")
            return self[name](pooled[:, :2].flatten(1))
        return self[name](pooled[:, 0])
