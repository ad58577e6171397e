"""The base class of all objectives: encoding of examples, task loss, predictions and scores.

To write an objective, subclass `Objective` and name it in an experiment: `objective: "package.module:MyObjective"`.
The engine calls `encode` once per split, `run` and `loss` in every training step, and `predict` and `score` in
evaluation. `simfl.contract.check(MyObjective)` tests it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from torch import Tensor, nn

from simfl.protocol import Batch, Examples, Outputs


@dataclass(frozen=True)
class Objective(ABC):
    """A task that clients learn from their examples.

    Attributes:
        reduction: "token" or "example", the unit over which the reported loss is averaged.
        inputs: Batch keys that are passed to the model as keyword arguments.
        metric: The main metric; higher is better.
        metrics: All columns that `score` returns; empty: known only after a run.
        target: Batch key of the correct classes [B] or tokens [B, T] (−100: none), if the objective has them.
        example: Settings for `simfl.contract.check`.
    """

    reduction: ClassVar[str]
    inputs: ClassVar[tuple[str, ...]]
    metric: ClassVar[str]
    metrics: ClassVar[tuple[str, ...]] = ()
    target: ClassVar[str] = ""
    example: ClassVar[Mapping[str, object]] = {}

    @abstractmethod
    def encode(self, split: Any, tokenizer: Any) -> Examples:
        """Return all examples of a split (`simfl.data.base.Split`) as tensors of static shape.

        `tokenizer` is the model's, or None. Raises DataError if the split lacks a column.
        """

    def run(self, module: nn.Module, inputs: Batch) -> Outputs | Tensor:
        """Run the model on `inputs`. An objective of several tasks runs all of them and returns one row per example."""
        outputs: Outputs | Tensor = module(**inputs)
        return outputs

    @abstractmethod
    def loss(self, outputs: Outputs, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the loss sum and the weight of each example, both [B]; zero where `batch["mask"]` is zero."""

    @abstractmethod
    def predict(self, module: nn.Module, batch: Batch) -> dict[str, Any]:
        """Return predictions for a batch, by name; every value has one entry per example."""

    @abstractmethod
    def score(self, predictions: dict[str, Any], split: Any, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Return the metrics of each prediction, float64 [len(rows)]; `rows` are the predicted rows of the split."""
