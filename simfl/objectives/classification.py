"""One label for each image or row of features."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from simfl.constraints import Count
from simfl.errors import DataError
from simfl.objectives.base import Objective
from simfl.objectives.images import table
from simfl.protocol import Batch, Examples, Outputs


@dataclass(frozen=True)
class Classification(Objective):
    """Cross-entropy of the label; scored by accuracy."""

    image_size: Count | None = None  # height and width of the images; null: as they are
    grey: bool = False  # images as one channel

    reduction: ClassVar[str] = "example"
    inputs: ClassVar[tuple[str, ...]] = ("x",)
    metric: ClassVar[str] = "accuracy"
    metrics: ClassVar[tuple[str, ...]] = ("accuracy",)
    target: ClassVar[str] = "label"

    def encode(self, split: Any, tokenizer: Any) -> Examples:
        """Rows `x` (float32 features or uint8 images [C, H, W]) and `label` int64. DataError without either column."""
        examples = split.examples
        if "label" not in examples.column_names:
            raise DataError(f"classification: the examples have no column 'label', but {examples.column_names}")
        label = torch.from_numpy(np.from_dlpack(_whole(examples["label"])).astype(np.int64))
        return Examples({"x": self._inputs(examples), "label": label})

    def _inputs(self, examples: Any) -> Tensor:
        if "features" in examples.column_names:
            flat = np.from_dlpack(_whole(examples["features"]).flatten()).astype(np.float32)
            return torch.from_numpy(flat.reshape(examples.num_rows, -1))
        if "image" in examples.column_names:
            size = None if self.image_size is None else (self.image_size, self.image_size)
            names = [f"example {row}" for row in range(examples.num_rows)]
            return table(examples["image"].to_pylist(), "L" if self.grey else "RGB", size, names)
        raise DataError(
            f"classification: the examples have neither 'features' nor 'image', but {examples.column_names}"
        )

    def loss(self, outputs: Outputs, batch: Batch) -> tuple[Tensor, Tensor]:
        """Cross-entropy of logits [B, classes], and 1 for each real example."""
        chances = outputs.logits.log_softmax(-1)
        picked = chances.gather(-1, batch["label"][..., None]).squeeze(-1)
        return -picked * batch["mask"], batch["mask"]

    def predict(self, module: nn.Module, batch: Batch) -> dict[str, Any]:
        """`label` int64 [B] and its `confidence` [B]."""
        out = module(batch["x"])
        logits = out.logits if isinstance(out, Outputs) else out
        confidence, label = logits.softmax(-1).max(-1)
        return {"label": label.tolist(), "confidence": confidence.tolist()}

    def score(self, predictions: dict[str, Any], split: Any, rows: np.ndarray) -> dict[str, np.ndarray]:
        """`accuracy`, 1 where the label is right."""
        truth = np.from_dlpack(_whole(split.examples["label"]))[rows]
        return {"accuracy": (np.asarray(predictions["label"]) == truth).astype(np.float64)}


def _whole(column: Any) -> Any:
    """An Arrow column as one array, for `np.from_dlpack`; where it is in one piece already, not a copy.

    Its own `to_numpy` would import pandas first, a fifth of a second in every process.
    """
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
