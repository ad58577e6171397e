"""The base class of all objectives: encoding of examples, task loss, predictions and scores.

To write an objective, subclass `Objective` and name it in an experiment: `objective: "package.module:MyObjective"`.
The engine calls `check` before a run starts, `encode` once per split, `run` and `loss` in every training step, and
`predict` and `score` in evaluation. `simfl.contract.check(MyObjective)` tests it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from torch import Tensor, nn

from simfl.errors import DataError
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
        reads_classes: Whether `encode` reads the column `label` as classes, which are checked before a run.
        example: Settings for `simfl.contract.check`.
        keeps_logits: False if losses are computed without `Outputs.logits`, which some algorithms compare.
    """

    reduction: ClassVar[str]
    inputs: ClassVar[tuple[str, ...]]
    metric: ClassVar[str]
    metrics: ClassVar[tuple[str, ...]] = ()
    target: ClassVar[str] = ""
    reads_classes: ClassVar[bool] = False
    example: ClassVar[Mapping[str, object]] = {}
    keeps_logits: ClassVar[bool] = True

    def check(self, split: Any) -> None:  # noqa: B027  (most objectives of users need none)
        """Raise DataError if a split (`simfl.data.base.Split`) cannot be encoded; called before a run starts."""

    def num_classes(self, known: int | None) -> int | None:
        """Return the number of classes for which models are built; `known` is what the data set says, or None."""
        return known

    def input_shape(self, split: Any, shape: tuple[int, ...] | None) -> tuple[int, ...] | None:
        """Return the shape of one encoded input, for models that are built for a shape.

        `shape` is what the data set says, or None. The default returns it.
        """
        return shape

    @abstractmethod
    def encode(self, split: Any, tokenizer: Any) -> Examples:
        """Return all examples of a split (`simfl.data.base.Split`) as tensors of static shape.

        `tokenizer` is the model's, or None. Raises DataError if the split lacks a column.
        """

    def full_length(self, examples: Callable[[], Examples]) -> int | None:
        """Return the tokens of every example with its padding, if the padding of batches is cut off; else None.

        An objective that cuts it off has the four methods below as well. `examples` returns the encoded training split.
        """
        return None

    def token_lengths(self, examples: Examples) -> np.ndarray:
        """Return the number of tokens of each example without its padding, int64 [N]."""
        raise NotImplementedError

    def cut_length(self, longest: int, examples: Examples) -> int:
        """Return the length to which a batch is cut whose longest example has `longest` tokens."""
        raise NotImplementedError

    def cut(self, batch: Batch, length: int) -> Batch:
        """Return a batch, of one client or stacked, with the first `length` tokens of each example."""
        raise NotImplementedError

    def length_of(self, inputs: Batch) -> int:
        """Return the number of tokens of the inputs of the model."""
        raise NotImplementedError

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

    def perfect(self, split: Any, rows: np.ndarray) -> dict[str, Any] | None:
        """Return the predictions of a model that is always right, as `score` takes them; None if it cannot be said.

        Before a run, their score is compared with 1, the best value of the main metric.
        """
        return None


def require_columns(table: Any, columns: Iterable[str], where: str) -> None:
    """Raise DataError if an Arrow table lacks one of these columns; `where` names the objective and the table."""
    for name in columns:
        if name not in table.column_names:
            raise DataError(f"{where} have no column {name!r}; their columns: {', '.join(table.column_names)}")


def require_documents(split: Any, objective: str, examples: Iterable[str], documents: Iterable[str] = ()) -> None:
    """Raise DataError if a split lacks documents with images, or one of these columns."""
    if split.documents is None:
        known = ", ".join(split.examples.column_names)
        raise DataError(
            f"{objective}: needs documents (words and boxes, or an image); the data have none, only {known}"
        )
    require_columns(split.examples, examples, f"{objective}: the examples")
    require_columns(split.documents, documents, f"{objective}: the documents")
    if not {"image", "image_path"} & set(split.documents.column_names):
        known = ", ".join(split.documents.column_names)
        raise DataError(f"{objective}: the documents have neither 'image' nor 'image_path'; their columns: {known}")
