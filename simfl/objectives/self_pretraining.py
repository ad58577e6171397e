"""Self-pretraining on documents alone: hidden words, hidden places, both (FeDocVQA, Nguyen et al. 2024).

A phase of it comes before one of questions and answers. A document is met once for each question about it, with other
words hidden each time, drawn by the question's id; the page's picture is always there. The model needs `marks: true`.
Words that recur on their page can be hidden at a rate of their own, so that there is something to copy from (Ram et al.
2021, Few-shot question answering by pretraining span selection).
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from simfl.constraints import Count, Fraction, Seed
from simfl.errors import ConfigError, DataError
from simfl.objectives.base import Objective
from simfl.objectives.docvqa import pages, round_up
from simfl.objectives.masking import NO_LABEL, PAD, PROMPTS, Hiding, Masked, Pages, mask, pages_of
from simfl.protocol import Batch, Examples, Outputs
from simfl.seeds import passing_rng

AT_A_TIME = 4096  # pages masked together
OF_TASK = ("input_ids", "boxes", "attention_mask")  # have an axis of tasks


@dataclass(frozen=True)
class SelfPretraining(Objective):
    """The base of these objectives; `rates` names their tasks."""

    max_tokens: Count = 1024  # read: prompt, words and end; words beyond are left out
    max_target: Count = 256  # pieces to say, with the end
    most: Count = 100  # L_M: words hidden on a page; those chosen later stay
    form: Literal["paper", "code"] = "paper"  # code: text has a closing sentinel; what cannot be said is hidden too
    recurring: Fraction | None = None  # r: of words that recur on a page r - r²/2 are hidden; null: as all
    seed: Seed = 0  # of what is hidden

    reduction: ClassVar[str] = "example"
    inputs: ClassVar[tuple[str, ...]] = ("input_ids", "boxes", "attention_mask", "labels", "pixel_values")
    metric: ClassVar[str] = "token_accuracy"
    metrics: ClassVar[tuple[str, ...]] = ("token_accuracy", "log_likelihood")
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
        names, document = split.examples["id"].to_pylist(), split.examples["document"].to_numpy().astype(np.int64)
        every = pages_of(split.documents, tokenizer)
        hiding = Hiding(tokenizer.marks, self.most, self.max_tokens, self.max_target, self.form == "code")
        rows = _Rows(len(names), len(self.rates()), self.max_tokens, self.max_target)
        for number, (task, rate) in enumerate(self.rates().items()):
            (prompt,) = tokenizer.encode([PROMPTS[task]])
            for first in range(0, len(names), AT_A_TIME):
                some = document[first : first + AT_A_TIME]
                chosen = self._choose(every, some, names[first : first + AT_A_TIME], task, rate)
                rows.put(first, number, mask(task, prompt, every, some, chosen, hiding))
        tensors = rows.tensors() | {"document": torch.from_numpy(document)}
        return Examples(tensors, {"pixel_values": ("document", pages(split.documents, tokenizer.image_size))})

    def _choose(self, every: Pages, document: np.ndarray, names: list[str], task: str, rate: float) -> np.ndarray:
        """Which words are to be hidden, bool [n, W]: those whose chance, drawn by the example's id, is low enough."""
        counts = every.bounds[document + 1] - every.bounds[document]
        chances = np.ones((len(names), int(counts.max(initial=0))))
        for row, (name, count) in enumerate(zip(names, counts.tolist(), strict=True)):
            chances[row, :count] = passing_rng("hide", self.seed, task, name).random(count)
        if self.recurring is None or task in ("layout", "reading"):  # whose words are shown
            return chances < rate
        word = every.bounds[document][:, None] + np.arange(chances.shape[1])
        real = np.arange(chances.shape[1]) < counts[:, None]
        again = np.where(real, every.again[np.where(real, word, 0)], 0) if len(every.again) else np.zeros_like(word)
        other = np.take_along_axis(chances, np.arange(chances.shape[1]) + again, 1)
        return np.where(again == 0, chances < rate, (chances < self.recurring) & (chances < other))

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
        return {name: np.array(predictions[name], np.float64) for name in self.metrics}


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

    tasks: tuple[Literal["text", "layout", "joint", "reading"], ...] = (
        "text",
        "layout",
        "joint",
    )  # which; reading is ours
    text_rate: Fraction = 0.5  # share of words whose text is hidden
    layout_rate: Fraction = 0.75  # share of words whose place is hidden
    joint_rate: Fraction = 0.15  # share of words of which both are hidden
    reading_rate: Fraction = 0.15  # share of words that are to be said as they stand

    def __post_init__(self) -> None:
        """Refuses no task, and one that is named twice."""
        if not self.tasks or len(set(self.tasks)) < len(self.tasks):
            raise ConfigError(f"tasks: {list(self.tasks)} given; allowed: text, layout, joint, reading, each once")

    def rates(self) -> dict[str, float]:
        """The tasks named."""
        return {task: getattr(self, f"{task}_rate") for task in self.tasks}


class _Rows:
    """Masked pages by example and task, with room for the longest."""

    def __init__(self, count: int, tasks: int, max_tokens: int, max_target: int) -> None:
        self.ids = np.full((count, tasks, max_tokens), PAD, np.int32)
        self.boxes = np.zeros((count, tasks, max_tokens, 4), np.int16)
        self.lengths = np.ones((count, tasks, 1), np.int64)
        self.labels = np.full((count, tasks, max_target), NO_LABEL, np.int64)
        self.longest = 1  # to say

    def put(self, first: int, task: int, found: Masked) -> None:
        """Some pages from the example `first` on."""
        read, said, rows = found.ids.shape[1], found.target.shape[1], slice(first, first + len(found.ids))
        self.ids[rows, task, :read], self.boxes[rows, task, :read] = found.ids, found.boxes
        self.lengths[rows, task, 0], self.labels[rows, task, :said] = found.lengths, found.target
        self.longest = max(self.longest, said)

    def tensors(self) -> dict[str, Tensor]:
        """Cut to the longest."""
        length = round_up(int(self.lengths.max(initial=1)), 16, self.ids.shape[2])
        said = round_up(self.longest, 4, self.labels.shape[2])
        return {
            "input_ids": torch.from_numpy(self.ids[..., :length].copy()),
            "boxes": torch.from_numpy(self.boxes[:, :, :length].copy()),
            "attention_mask": torch.from_numpy(np.arange(length) < self.lengths),
            "labels": torch.from_numpy(self.labels[..., :said].reshape(len(self.labels), -1)),
        }


def _chances(outputs: Outputs, batch: Batch) -> tuple[Tensor, Tensor]:
    """The log-chance of each piece to say, 0 elsewhere, and where they are; both [B, K·T]."""
    labels = batch["labels"]
    real = (labels != NO_LABEL).to(outputs.logits.dtype) * batch["mask"][..., None]
    picked = outputs.logits.log_softmax(-1).gather(-1, labels.clamp_min(0)[..., None]).squeeze(-1)
    return picked * real, real
