"""Classification of texts, or of pairs of texts, by a model of transformers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from simfl.constraints import PositiveInt
from simfl.objectives.base import Objective, require_columns
from simfl.objectives.classification import class_numbers
from simfl.objectives.text_tokenizer import check_length, check_texts, require_text_tokenizer
from simfl.protocol import Batch, Examples, Outputs

STEP = 8  # lengths are rounded up to a multiple


@dataclass(frozen=True)
class TextClassification(Objective):
    """Cross-entropy of one label per text; scored by accuracy."""

    text: str = "text"  # column of the texts
    pair: str | None = None  # column of second texts, such as the hypotheses of sentence pairs
    max_tokens: PositiveInt = 128  # of a text or a pair, special tokens included; the rest is cut

    reduction: ClassVar[str] = "example"
    inputs: ClassVar[tuple[str, ...]] = ("input_ids", "attention_mask", "token_type_ids")
    metric: ClassVar[str] = "accuracy"
    metrics: ClassVar[tuple[str, ...]] = ("accuracy",)
    target: ClassVar[str] = "label"
    reads_classes: ClassVar[bool] = True

    def check(self, split: Any) -> None:
        """Raise DataError without texts or labels."""
        require_columns(split.examples, (*self._columns(), "label"), "text_classification: the examples")
        for name in self._columns():
            check_texts(split.examples[name], name, "text_classification")

    def _columns(self) -> tuple[str, ...]:
        return (self.text,) if self.pair is None else (self.text, self.pair)

    def encode(self, split: Any, tokenizer: Any) -> Examples:
        """Return rows `input_ids` int64 [N, L] padded on the right, `attention_mask` int64 [N, L], `label` int64 [N].

        L is the split's longest text in tokens, rounded up to 8 if `max_tokens` is a multiple of it.
        `token_type_ids` [N, L] are added if the tokenizer has them.

        Raises:
            DataError: A column is missing, a label is no class, or the model has no tokenizer of transformers.
        """
        given = require_text_tokenizer(tokenizer, "text_classification")
        hf = given.tokenizer
        self.check(split)
        texts = [split.examples[name].to_pylist() for name in self._columns()]
        step = STEP if self.max_tokens % STEP == 0 else None  # transformers refuses a limit that is no multiple
        encoded = hf(
            *texts, truncation=True, max_length=self.max_tokens, padding=True, pad_to_multiple_of=step,
            padding_side="right", return_tensors="np",
        )  # fmt: skip
        rows = {name: torch.from_numpy(np.asarray(encoded[name], np.int64)) for name in self.inputs if name in encoded}
        longest = int(rows["attention_mask"].sum(1).max()) if len(texts[0]) else 0
        check_length(given, longest, "text_classification", "max_tokens")
        cut = int((rows["attention_mask"].sum(1) >= self.max_tokens).sum())
        notes = (f"max_tokens {self.max_tokens}: texts of {cut:,} of {len(texts[0]):,} examples may be cut",) * bool(
            cut
        )
        return Examples({**rows, "label": torch.from_numpy(class_numbers(split.examples))}, None, notes)

    def loss(self, outputs: Outputs, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the cross-entropy of logits [B, V], and weight 1 per real example."""
        picked = outputs.logits.log_softmax(-1).gather(-1, batch["label"][..., None]).squeeze(-1)
        return -picked * batch["mask"], batch["mask"]

    def predict(self, module: nn.Module, batch: Batch) -> dict[str, Any]:
        """Return the most likely `label` [B] and its probability, `confidence` [B]."""
        out = module(**{name: batch[name] for name in self.inputs if name in batch})
        confidence, label = out.logits.float().softmax(-1).max(-1)
        return {"label": label.tolist(), "confidence": confidence.tolist()}

    def score(self, predictions: dict[str, Any], split: Any, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Return `accuracy`, 1 for a correct label."""
        truth = class_numbers(split.examples.select(["label"]).take(rows))
        return {"accuracy": (np.asarray(predictions["label"]) == truth).astype(np.float64)}

    def perfect(self, split: Any, rows: np.ndarray) -> dict[str, Any]:
        """Return the true labels."""
        return {"label": class_numbers(split.examples.select(["label"]).take(rows)).tolist()}
