"""The base of all objectives: examples become tensors, outputs become a loss, predictions become scores."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from torch import Tensor, nn

from simfl.protocol import Batch, Examples, Outputs


@dataclass(frozen=True)
class Objective(ABC):
    """What a client learns from its examples."""

    reduction: ClassVar[str]  # "token" or "example": what a mean is over
    inputs: ClassVar[tuple[str, ...]]  # batch keys handed to the model as keyword arguments
    metric: ClassVar[str]  # the headline metric; higher is better
    metrics: ClassVar[tuple[str, ...]] = ()  # all that `score` gives; empty: they are known after a run alone
    target: ClassVar[str] = ""  # batch key of the right classes [B] or pieces [B, T] (−100: none), if there are such

    @abstractmethod
    def encode(self, split: Any, tokenizer: Any) -> Examples:
        """All examples of a split as tensors of static shape."""

    def run(self, module: nn.Module, inputs: Batch) -> Outputs | Tensor:
        """One pass of the model; an objective of several tasks runs all of them, and gives one row for each example."""
        found: Outputs | Tensor = module(**inputs)
        return found

    @abstractmethod
    def loss(self, outputs: Outputs, batch: Batch) -> tuple[Tensor, Tensor]:
        """Per-example sums and weights, both [B]; zero where `batch["mask"]` is zero."""

    @abstractmethod
    def predict(self, module: nn.Module, batch: Batch) -> dict[str, Any]:
        """Predictions for a batch, greedy and batched; every value has one entry per example."""

    @abstractmethod
    def score(self, predictions: dict[str, Any], split: Any, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Per-example metric columns for these rows of the split."""
