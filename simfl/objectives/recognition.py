"""Pictures of words, letter by letter (ASTER, Shi et al. 2018; FedOCR, He et al. 2020)."""

from __future__ import annotations

import string
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from simfl.constraints import Count
from simfl.errors import DataError
from simfl.metrics import similarity
from simfl.objectives.base import Objective
from simfl.objectives.images import table
from simfl.protocol import Batch, Examples, Outputs

LETTERS = string.digits + string.ascii_letters + string.punctuation  # 94, in ASTER's order
END, PAD, UNKNOWN, NO_LABEL = 94, 95, 96, -100
KNOWN = set(string.digits + string.ascii_lowercase)


@dataclass(frozen=True)
class Recognition(Objective):
    """Spell the word in a picture; scored by word accuracy, case and punctuation left out."""

    height: Count = 64  # to which pictures are scaled, proportions not kept
    width: Count = 256  # likewise
    max_letters: Count = 100  # of a word with its end, in training; and of what is read
    beams: Count = 5  # words kept while one is read

    reduction: ClassVar[str] = "example"
    inputs: ClassVar[tuple[str, ...]] = ("pixel_values", "labels")
    metric: ClassVar[str] = "accuracy"
    metrics: ClassVar[tuple[str, ...]] = ("accuracy", "similarity", "exact")
    target: ClassVar[str] = "labels"

    def encode(self, split: Any, tokenizer: Any) -> Examples:
        """Rows `pixel_values` uint8 [N, 3, H, W], `labels` int64 [N, T] (−100 behind the end), T the split's longest,
        rounded up to 4. DataError without images or texts."""
        examples = split.examples
        for column in ("image", "text"):
            if column not in examples.column_names:
                raise DataError(f"recognition: the examples have no column {column!r}, but {examples.column_names}")
        names = [f"example {row}" for row in range(examples.num_rows)]
        pixels = table(examples["image"].to_pylist(), "RGB", (self.width, self.height), names)
        return Examples({"pixel_values": pixels, "labels": self._labels(examples["text"].to_pylist())})

    def _labels(self, texts: list[str]) -> Tensor:
        number = {letter: k for k, letter in enumerate(LETTERS)}
        longest = max((len(text) + 1 for text in texts), default=1)
        labels = np.full((len(texts), min(-(-longest // 4) * 4, self.max_letters)), NO_LABEL, np.int64)
        for row, text in enumerate(texts):
            spelt = [*(number.get(letter, UNKNOWN) for letter in text[: self.max_letters - 1]), END]
            labels[row, : len(spelt)] = spelt
        return torch.from_numpy(labels)

    def loss(self, outputs: Outputs, batch: Batch) -> tuple[Tensor, Tensor]:
        """Cross-entropy summed over the letters of each word, logits [B, T, C], and 1 for each real word; both [B].

        The sum is divided by the number of words, as in aster.pytorch, so a long word counts for more.
        """
        labels = batch["labels"]
        real = (labels != NO_LABEL).to(outputs.logits.dtype) * batch["mask"][..., None]
        picked = outputs.logits.log_softmax(-1).gather(-1, labels.clamp_min(0)[..., None]).squeeze(-1)
        return -(picked * real).sum(-1), batch["mask"]

    def predict(self, module: Any, batch: Batch) -> dict[str, Any]:
        """`text` and its `confidence` for each example; `module` has ASTER's `read`."""
        letters, chances = module.read(batch["pixel_values"], self.beams, self.max_letters)
        return {"text": [spelt(row) for row in letters.tolist()], "confidence": chances.tolist()}

    def score(self, predictions: dict[str, Any], split: Any, rows: np.ndarray) -> dict[str, np.ndarray]:
        """`accuracy` and `similarity` (1 − edits over length) by letters and digits; `exact` by all characters."""
        truth = split.examples["text"].take(rows).to_pylist()
        pairs = list(zip(predictions["text"], truth, strict=True))
        return {
            "accuracy": np.array([plain(given) == plain(right) for given, right in pairs], np.float64),
            "similarity": np.array([similarity(plain(given), plain(right)) for given, right in pairs], np.float64),
            "exact": np.array([given == right for given, right in pairs], np.float64),
        }


def spelt(classes: list[int]) -> str:
    """The word up to its end; what is no letter is left out."""
    cut = classes[: classes.index(END)] if END in classes else classes
    return "".join(LETTERS[c] for c in cut if c < END)


def plain(text: str) -> str:
    """Lower-case letters and digits alone, as word accuracy compares them."""
    return "".join(letter for letter in text.lower() if letter in KNOWN)
