"""Classification of images or feature vectors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from simfl.constraints import PositiveInt
from simfl.errors import DataError
from simfl.objectives.base import Objective
from simfl.objectives.images import decode_images
from simfl.protocol import Batch, Examples, Outputs


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

    def encode(self, split: Any, tokenizer: Any) -> Examples:
        """Return rows `x` (float32 features [N, d] or uint8 images [N, C, H, W]) and `label` int64 [N].

        Raises DataError without these columns.
        """
        examples = split.examples
        if "label" not in examples.column_names:
            raise DataError(
                f"classification: the examples have no column 'label'; their columns: {examples.column_names}"
            )
        label = torch.from_numpy(np.from_dlpack(_single_array(examples["label"])).astype(np.int64))
        return Examples({"x": self._inputs(examples), "label": label})

    def _inputs(self, examples: Any) -> Tensor:
        if "features" in examples.column_names:
            flat = np.from_dlpack(_single_array(examples["features"]).flatten()).astype(np.float32)
            return torch.from_numpy(flat.reshape(examples.num_rows, -1))
        if "image" in examples.column_names:
            size = None if self.image_size is None else (self.image_size, self.image_size)
            names = [f"example {row}" for row in range(examples.num_rows)]
            return decode_images(examples["image"].to_pylist(), "L" if self.grey else "RGB", size, names)
        raise DataError(
            f"classification: the examples have neither 'features' nor 'image'; their columns: {examples.column_names}"
        )

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
        truth = np.from_dlpack(_single_array(split.examples["label"]))[rows]
        return {"accuracy": (np.asarray(predictions["label"]) == truth).astype(np.float64)}


def _single_array(column: Any) -> Any:
    """Return an Arrow column as one array for `np.from_dlpack`, without a copy if it has one chunk.

    Arrow's own `to_numpy` imports pandas, which takes a fifth of a second in every process.
    """
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
