"""Self-pretraining on documents alone: hidden words, hidden places, both (FeDocVQA, Nguyen et al. 2024).

A phase of it comes before one of questions and answers. A document is met once for each question about it, with other
words hidden each time, drawn by the question's id; the page's picture is always there. The model needs `marks: true`.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from simfl.errors import ConfigError, DataError
from simfl.objectives.base import Objective
from simfl.objectives.docvqa import NO_LABEL, PAD, pages, round_up
from simfl.objectives.masking import TASKS, Hiding, Masked, mask, words_of
from simfl.protocol import Batch, Examples, Outputs
from simfl.ranges import Count, Fraction, Whole
from simfl.seeds import rng

OF_TASK = ("input_ids", "boxes", "attention_mask")  # have an axis of tasks


@dataclass(frozen=True)
class SelfPretraining(Objective):
    """The base of these objectives; `rates` names their tasks."""

    max_tokens: Count = 1024  # read: prompt, words and end; words beyond are left out
    max_target: Count = 256  # pieces to say, with the end
    most: Count = 100  # L_M: words hidden on a page; those chosen later stay
    form: Literal["paper", "code"] = "paper"  # code: text has a closing sentinel; what cannot be said is hidden too
    seed: Whole = 0  # of what is hidden

    reduction: ClassVar[str] = "example"
    inputs: ClassVar[tuple[str, ...]] = ("input_ids", "boxes", "attention_mask", "labels", "pixel_values")
    metric: ClassVar[str] = "token_accuracy"
    target: ClassVar[str] = "labels"

    @abstractmethod
    def rates(self) -> dict[str, float]:
        """Tasks, each with the share of words that it hides."""

    def encode(self, split: Any, tokenizer: Any) -> Examples:
        """K tasks: `input_ids` int32 [N, K, L], `boxes` int16 [N, K, L, 4], `attention_mask` bool, `labels` [N, K·T].

        Shared: `pixel_values` uint8 [documents, 3, S, S]. DataError without documents or special pieces.
        """
        if split.documents is None or tokenizer is None:
            raise DataError(
                "self-pretraining: needs documents and a model that reads text; the data or model have none"
            )
        if tokenizer.marks is None:
            raise DataError("self-pretraining: the model has no sentinels and places; give model.marks: true")
        document = split.examples["document"].to_numpy()
        words = words_of(split.documents, tokenizer)
        hiding = Hiding(tokenizer.marks, self.most, self.max_tokens, self.max_target, self.form == "code")
        columns: list[list[Masked]] = []
        for task, rate in self.rates().items():
            (prompt,) = tokenizer.encode([TASKS[task][0]])
            names = split.examples["id"].to_pylist()
            chances = (
                rng("hide", self.seed, task, n).random(len(words[d])) for n, d in zip(names, document, strict=True)
            )
            columns.append(
                [
                    mask(task, prompt, words[d], (u < rate).tolist(), hiding)
                    for u, d in zip(chances, document, strict=True)
                ]
            )
        rows = _tensors(columns, self.max_tokens, self.max_target)
        rows["document"] = torch.from_numpy(document.astype(np.int64))
        return Examples(rows, {"pixel_values": ("document", pages(split.documents, tokenizer.image_size))})

    def run(self, module: Any, inputs: Batch) -> Outputs:
        """All tasks of a batch in one pass: logits [B, K·T, V], states likewise, features their mean [B, d]."""
        count, tasks = inputs["input_ids"].shape[:2]
        flat = {name: inputs[name].flatten(0, 1) for name in OF_TASK}
        flat["labels"] = inputs["labels"].unflatten(1, (tasks, -1)).flatten(0, 1)
        if "pixel_values" in inputs:
            flat["pixel_values"] = inputs["pixel_values"].repeat_interleave(tasks, 0)
        out: Outputs = module(**flat)
        rows = {name: tensor.unflatten(0, (count, tasks)) for name, tensor in out.tensors().items()}
        features = rows.pop("features", None)
        joined = {name: tensor.flatten(1, 2) for name, tensor in rows.items()}
        return Outputs(**joined, features=None if features is None else features.mean(1))

    def loss(self, outputs: Outputs, batch: Batch) -> tuple[Tensor, Tensor]:
        """The mean over tasks of the mean cross-entropy over the pieces to say, and 1 for a real example; both [B]."""
        tasks = len(self.rates())
        picked, real = _chances(outputs, batch)
        sums, counts = (t.unflatten(1, (tasks, -1)).sum(-1) for t in (picked, real))
        return -(sums / counts.clamp_min(1.0)).mean(1) * batch["mask"], batch["mask"]

    def predict(self, module: Any, batch: Batch) -> dict[str, Any]:
        """`token_accuracy` and `log_likelihood` of each example, of a piece given the right ones before it."""
        outputs = self.run(module, {name: batch[name] for name in self.inputs if name in batch})
        picked, real = _chances(outputs, batch)
        right = (outputs.logits.argmax(-1) == batch["labels"]) * real
        count = real.sum(-1).clamp_min(1.0)
        return {
            "token_accuracy": (right.sum(-1) / count).tolist(),
            "log_likelihood": (picked.sum(-1) / count).tolist(),
        }

    def score(self, predictions: dict[str, Any], split: Any, rows: np.ndarray) -> dict[str, np.ndarray]:
        """The same of each row."""
        return {name: np.array(predictions[name], np.float64) for name in ("token_accuracy", "log_likelihood")}


@dataclass(frozen=True)
class TextModeling(SelfPretraining):
    """Say the text of hidden words from their places."""

    rate: Fraction = 0.5  # share of words that are hidden

    def rates(self) -> dict[str, float]:
        """One task."""
        return {"text": self.rate}


@dataclass(frozen=True)
class LayoutModeling(SelfPretraining):
    """Say where words stand of which the place is hidden."""

    rate: Fraction = 0.75  # share of words whose place is hidden

    def rates(self) -> dict[str, float]:
        """One task."""
        return {"layout": self.rate}


@dataclass(frozen=True)
class TextLayoutModeling(SelfPretraining):
    """Say text and place of hidden words."""

    rate: Fraction = 0.15  # share of words that are hidden

    def rates(self) -> dict[str, float]:
        """One task."""
        return {"joint": self.rate}


@dataclass(frozen=True)
class MixedModeling(SelfPretraining):
    """Several of these tasks on every example; the loss is the mean of theirs."""

    tasks: tuple[Literal["text", "layout", "joint"], ...] = ("text", "layout", "joint")  # which
    text_rate: Fraction = 0.5  # share of words whose text is hidden
    layout_rate: Fraction = 0.75  # share of words whose place is hidden
    joint_rate: Fraction = 0.15  # share of words of which both are hidden

    def __post_init__(self) -> None:
        """Refuses no task, and one that is named twice."""
        if not self.tasks or len(set(self.tasks)) < len(self.tasks):
            raise ConfigError(f"tasks: {list(self.tasks)} given; allowed: text, layout, joint, each once")

    def rates(self) -> dict[str, float]:
        """The tasks named."""
        return {task: getattr(self, f"{task}_rate") for task in self.tasks}


def _tensors(columns: list[list[Masked]], max_tokens: int, max_target: int) -> dict[str, Tensor]:
    """Masked pages by task, then example, as padded tensors."""
    every = [page for column in columns for page in column]
    length = round_up(max((len(page.ids) for page in every), default=1), 16, max_tokens)
    said = round_up(max((len(page.target) for page in every), default=1), 4, max_target)
    count, tasks = len(columns[0]), len(columns)
    ids = np.full((count, tasks, length), PAD, np.int32)
    boxes = np.zeros((count, tasks, length, 4), np.int16)
    labels = np.full((count, tasks, said), NO_LABEL, np.int64)
    for task, column in enumerate(columns):
        for row, page in enumerate(column):
            ids[row, task, : len(page.ids)], boxes[row, task, : len(page.ids)] = page.ids, page.boxes
            labels[row, task, : len(page.target)] = page.target
    lengths = np.array([[len(column[row].ids) for column in columns] for row in range(count)]).reshape(count, tasks, 1)
    return {
        "input_ids": torch.from_numpy(ids),
        "boxes": torch.from_numpy(boxes),
        "attention_mask": torch.from_numpy(np.arange(length) < lengths),
        "labels": torch.from_numpy(labels.reshape(count, tasks * said)),
    }


def _chances(outputs: Outputs, batch: Batch) -> tuple[Tensor, Tensor]:
    """The log-chance of each piece to say, 0 elsewhere, and where they are; both [B, K·T]."""
    labels = batch["labels"]
    real = (labels != NO_LABEL).to(outputs.logits.dtype) * batch["mask"][..., None]
    picked = outputs.logits.log_softmax(-1).gather(-1, labels.clamp_min(0)[..., None]).squeeze(-1)
    return picked * real, real
