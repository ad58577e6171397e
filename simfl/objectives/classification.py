"""Classification of images or feature vectors."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from simfl.constraints import PositiveInt
from simfl.errors import DataError
from simfl.objectives.base import Objective, require_columns
from simfl.objectives.images import decode_images
from simfl.protocol import Batch, Examples, Outputs

CLASSES = b"simfl.classes"  # schema metadata of the examples: names of the classes, if labels are text


@dataclass(frozen=True)
class Classification(Objective):
    """Cross-entropy of one label per example; scored by accuracy."""

    image_size: PositiveInt | None = None  # height and width that images are scaled to; null: no scaling
    grey: bool = False  # convert images to one channel

    reduction: ClassVar[str] = "example"
    inputs: ClassVar[tuple[str, ...]] = ("x",)
    metric: ClassVar[str] = "accuracy"
    metrics: ClassVar[tuple[str, ...]] = ("accuracy",)
    target: ClassVar[str] = "label"
    reads_classes: ClassVar[bool] = True

    def check(self, split: Any) -> None:
        """Raise DataError without labels, or without features or images for every example."""
        require_columns(split.examples, ("label",), "classification: the examples")
        column = next((name for name in ("features", "image") if name in split.examples.column_names), None)
        if column is None:
            known = ", ".join(split.examples.column_names)
            raise DataError(f"classification: the examples have neither 'features' nor 'image'; their columns: {known}")
        _check_values(split.examples[column], column)

    def input_shape(self, split: Any, shape: tuple[int, ...] | None) -> tuple[int, ...] | None:
        """Return the shape of images as they are scaled and converted; `shape` for features."""
        if "image" not in split.examples.column_names or "features" in split.examples.column_names:
            return shape
        channels, size = 1 if self.grey else 3, self.image_size
        return (channels, size, size) if size else shape and (channels, *shape[1:])

    def encode(self, split: Any, tokenizer: Any) -> Examples:
        """Return rows `x` (float32 features [N, d] or uint8 images [N, C, H, W]) and `label` int64 [N].

        Raises DataError without these columns, or if a label is no class.
        """
        self.check(split)
        return Examples({"x": self._inputs(split.examples), "label": torch.from_numpy(class_numbers(split.examples))})

    def _inputs(self, examples: Any) -> Tensor:
        if "features" in examples.column_names:
            flat = np.from_dlpack(_single_array(examples["features"]).flatten()).astype(np.float32)
            return torch.from_numpy(flat.reshape(examples.num_rows, -1))
        size = None if self.image_size is None else (self.image_size, self.image_size)
        names = [f"example {row}" for row in range(examples.num_rows)]
        return decode_images(examples["image"].to_pylist(), "L" if self.grey else "RGB", size, names)

    def loss(self, outputs: Outputs, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the cross-entropy of logits [B, V], and weight 1 per real example."""
        log_probs = outputs.logits.log_softmax(-1)
        picked = log_probs.gather(-1, batch["label"][..., None]).squeeze(-1)
        return -picked * batch["mask"], batch["mask"]

    def predict(self, module: nn.Module, batch: Batch) -> dict[str, Any]:
        """Return the most likely `label` [B] and its probability, `confidence` [B]."""
        out = module(batch["x"])
        logits = getattr(out, "logits", out)
        confidence, label = logits.softmax(-1).max(-1)
        return {"label": label.tolist(), "confidence": confidence.tolist()}

    def score(self, predictions: dict[str, Any], split: Any, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Return `accuracy`, 1 for a correct label."""
        truth = class_numbers(split.examples.select(["label"]).take(rows))
        return {"accuracy": (np.asarray(predictions["label"]) == truth).astype(np.float64)}


def _check_values(values: Any, column: str) -> None:
    """Raise DataError if an example has no features or no image, or features of another length than the first one."""
    if values.null_count:
        row = next(row for row in range(len(values)) if not values[row].is_valid)
        raise DataError(f"classification: row {row}, column {column!r}: null, expected a value for every example")
    if column == "features" and not str(values.type).startswith("fixed_size_list"):
        if "list" not in str(values.type):
            raise DataError(f"classification: column 'features': its type is {values.type}, expected lists of numbers")
        lengths = np.from_dlpack(_single_array(values).value_lengths())
        if (lengths != lengths[:1]).any():
            row = int(np.flatnonzero(lengths != lengths[0])[0])
            raise DataError(f"classification: row {row} has {lengths[row]} features, row 0 has {lengths[0]}")


def class_numbers(examples: Any) -> np.ndarray:
    """Return the label of each example as the number of its class, int64 [N].

    Text is numbered by the names of the classes in the table's metadata. Raises DataError for a label that is no class.
    """
    column = examples["label"]
    if "string" in str(column.type):
        names = (examples.schema.metadata or {}).get(CLASSES)
        if names is None:
            raise DataError("classification: labels are text, but the data do not name their classes")
        number = {name: k for k, name in enumerate(json.loads(names))}
        given = np.array([number.get(label, -1) for label in column.to_pylist()], np.int64)
        return _checked(given, given >= 0, column)
    if column.null_count:
        raise DataError(f"classification: {column.null_count} labels are null")
    if "list" in str(column.type):
        raise DataError(f"classification: labels are {column.type}, expected one class for each example")
    numbers = np.from_dlpack(_single_array(column.cast("int8") if str(column.type) == "bool" else column))
    whole = numbers == np.floor(numbers) if numbers.dtype.kind == "f" else np.ones(len(numbers), bool)
    return _checked(numbers, whole & (numbers >= 0), column).astype(np.int64)


def _checked(numbers: np.ndarray, is_class: np.ndarray, column: Any) -> np.ndarray:
    """Return the numbers of the classes. Raises DataError for a label that is no class."""
    if not is_class.all():
        row = int(np.flatnonzero(~is_class)[0])
        raise DataError(f"classification: row {row}, column 'label' is {column[row].as_py()!r}, which is no class")
    return numbers


def _single_array(column: Any) -> Any:
    """Return an Arrow column as one array for `np.from_dlpack`, without a copy if it has one chunk.

    Arrow's own `to_numpy` imports pandas, which takes a fifth of a second in every process.
    """
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
