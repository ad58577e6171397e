"""Recognition of scene text, letter by letter (ASTER, Shi et al. 2018; FedOCR, He et al. 2020)."""

from __future__ import annotations

import string
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from simfl.constraints import PositiveInt
from simfl.errors import DataError
from simfl.metrics import similarity
from simfl.objectives.base import Objective, require_columns
from simfl.objectives.images import decode_images
from simfl.protocol import Batch, Examples, Outputs

LETTERS = string.digits + string.ascii_letters + string.punctuation  # 94, in ASTER's order
END, PAD, UNKNOWN, NO_LABEL = 94, 95, 96, -100
KNOWN = set(string.digits + string.ascii_lowercase)


@dataclass(frozen=True)
class Recognition(Objective):
    """Recognition of the word in an image; scored by word accuracy without case and punctuation."""

    height: PositiveInt = 64  # height that images are scaled to, without keeping proportions
    width: PositiveInt = 256  # width that images are scaled to
    max_letters: PositiveInt = 100  # letters of a word including its end token, in training and decoding
    beams: PositiveInt = 5  # beams of the beam search

    reduction: ClassVar[str] = "example"
    inputs: ClassVar[tuple[str, ...]] = ("pixel_values", "labels")
    metric: ClassVar[str] = "accuracy"
    metrics: ClassVar[tuple[str, ...]] = ("accuracy", "similarity", "exact")
    target: ClassVar[str] = "labels"

    def check(self, split: Any) -> None:
        """Raise DataError without an image and a text for every example."""
        require_columns(split.examples, ("image", "text"), "recognition: the examples")
        for name in ("image", "text"):
            values = split.examples[name]
            if values.null_count:
                row = next(row for row in range(len(values)) if not values[row].is_valid)
                raise DataError(f"recognition: row {row}, column {name!r}: null, expected a value for every example")

    def encode(self, split: Any, tokenizer: Any) -> Examples:
        """Return rows `pixel_values` uint8 [N, 3, H, W] and `labels` int64 [N, T] (−100: padding).

        T is the split's longest word, rounded up to 4. Raises DataError without images or texts.
        """
        self.check(split)
        examples, texts = split.examples, split.examples["text"].to_pylist()
        names = [f"example {row}" for row in range(examples.num_rows)]
        pixels = decode_images(examples["image"].to_pylist(), "RGB", (self.width, self.height), names)
        return Examples({"pixel_values": pixels, "labels": self._labels(texts)}, notes=self._notes(texts))

    def _notes(self, texts: list[str]) -> tuple[str, ...]:
        """Return notes on words that are cut, or have letters that the model cannot output."""
        cut = sum(len(text) >= self.max_letters for text in texts)
        unknown = sum(not set(text) <= set(LETTERS) for text in texts)
        notes = {f"max_letters {self.max_letters}: {cut:,} of {len(texts):,} words are cut": cut}
        notes[f"{unknown:,} of {len(texts):,} words have letters outside of ASTER's 94, learned as unknown"] = unknown
        return tuple(note for note, count in notes.items() if count)

    def _labels(self, texts: list[str]) -> Tensor:
        number = {letter: k for k, letter in enumerate(LETTERS)}
        longest = max((len(text) + 1 for text in texts), default=1)
        labels = np.full((len(texts), min(-(-longest // 4) * 4, self.max_letters)), NO_LABEL, np.int64)
        for row, text in enumerate(texts):
            classes = [*(number.get(letter, UNKNOWN) for letter in text[: self.max_letters - 1]), END]
            labels[row, : len(classes)] = classes
        return torch.from_numpy(labels)

    def loss(self, outputs: Outputs, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the cross-entropy summed over the letters of each word, logits [B, T, V], and weight 1 per word.

        The sum is divided by the number of words, as in aster.pytorch, so long words count more.
        """
        labels = batch["labels"]
        real = (labels != NO_LABEL).to(outputs.logits.dtype) * batch["mask"][..., None]
        picked = outputs.logits.log_softmax(-1).gather(-1, labels.clamp_min(0)[..., None]).squeeze(-1)
        return -(picked * real).sum(-1), batch["mask"]

    def predict(self, module: Any, batch: Batch) -> dict[str, Any]:
        """Return `text` and its `confidence`. `module` has a method `read` like ASTER's."""
        letters, confidences = module.beam_search(batch["pixel_values"], self.beams, self.max_letters)
        return {"text": [decode_word(row) for row in letters.tolist()], "confidence": confidences.tolist()}

    def score(self, predictions: dict[str, Any], split: Any, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Return `accuracy` and `similarity` of lower-case letters and digits, and `exact` accuracy of all letters."""
        truth = split.examples["text"].take(rows).to_pylist()
        pairs = list(zip(predictions["text"], truth, strict=True))
        normalized = [(normalize_word(a), normalize_word(b)) for a, b in pairs]
        return {
            "accuracy": np.array([a == b for a, b in normalized], np.float64),
            "similarity": np.array([similarity(a, b) for a, b in normalized], np.float64),
            "exact": np.array([a == b for a, b in pairs], np.float64),
        }

    def perfect(self, split: Any, rows: np.ndarray) -> dict[str, Any]:
        """Return the words that can be read with the known letters."""
        truth = split.examples["text"].take(rows).to_pylist()
        return {"text": ["".join(letter for letter in text if letter in LETTERS) for text in truth]}


def decode_word(classes: list[int]) -> str:
    """Return the word up to its end token, without classes that are no letters."""
    cut = classes[: classes.index(END)] if END in classes else classes
    return "".join(LETTERS[c] for c in cut if c < END)


def normalize_word(text: str) -> str:
    """Return the lower-case letters and digits of a word, which word accuracy compares."""
    return "".join(letter for letter in text.lower() if letter in KNOWN)
