"""Self-pretraining on documents without answers: masked words, masked positions, both (FeDocVQA, Nguyen et al. 2024).

A phase of self-pretraining precedes one of question answering. Each document is used once per question about it, with
different masked words, drawn by the question's id; the image of the page is always visible. The model needs
`special_tokens: true`. Words that recur on their page can be masked at a rate of their own, so that the model can copy
from another occurrence (Ram et al. 2021, "Few-shot question answering by pretraining span selection").
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from simfl.constraints import Fraction, PositiveInt, Seed
from simfl.errors import ConfigError, DataError
from simfl.objectives.base import Objective, require_documents
from simfl.objectives.docvqa import round_up
from simfl.objectives.masking import NO_LABEL, PAD, PROMPTS, Masked, MaskingRules, Pages, build_pages, mask_pages
from simfl.objectives.notes import missing_images
from simfl.objectives.pages import example_documents, page_images
from simfl.protocol import Batch, Examples, Outputs
from simfl.seeds import reused_rng

Task = Literal["text", "layout", "joint", "reading"]

CHUNK = 4096  # pages that are masked together
TASK_KEYS = ("input_ids", "boxes", "attention_mask")  # batch keys with an axis of tasks


@dataclass(frozen=True)
class SelfPretraining(Objective):
    """The base of these objectives; `rates` names their tasks."""

    max_tokens: PositiveInt = 1024  # of the input: prompt, words and end token; the rest of the page is cut
    max_target: PositiveInt = 256  # tokens of the target, with end token
    max_masked: PositiveInt = 100  # L_M: masked words per page; words chosen later stay unmasked
    form: Literal["paper", "code"] = "paper"  # code: closing sentinel for text; masks words that the target lacks too
    repeat_rate: Fraction | None = None  # r: mask r - r²/2 of the words that recur on a page; null: as all words
    seed: Seed = 0  # of the choice of words

    reduction: ClassVar[str] = "example"
    inputs: ClassVar[tuple[str, ...]] = ("input_ids", "boxes", "attention_mask", "labels", "pixel_values")
    metric: ClassVar[str] = "token_accuracy"
    metrics: ClassVar[tuple[str, ...]] = ("token_accuracy", "log_likelihood")
    target: ClassVar[str] = "labels"

    @abstractmethod
    def rates(self) -> dict[str, float]:
        """Return the fraction of masked words of each task."""

    def check(self, split: Any) -> None:
        """Raise DataError without documents."""
        require_documents(split, "self-pretraining", ("id", "document"), ("id", "words", "boxes"))

    def encode(self, split: Any, tokenizer: Any) -> Examples:
        """Return the rows of K tasks per example.

        They are `input_ids` int32 [N, K, L], `boxes` int16 [N, K, L, 4], `attention_mask` bool [N, K, L] and `labels`
        int64 [N, K·T]. Shared: `pixel_values` uint8 [documents, 3, S, S].

        Raises DataError without documents or special tokens.
        """
        if tokenizer is None:
            raise DataError("self-pretraining: needs documents and a model with a tokenizer; the model has none")
        self.check(split)
        if tokenizer.special_tokens is None:
            raise DataError("self-pretraining: the model has no special tokens; give model.special_tokens: true")
        names = split.examples["id"].to_pylist()
        document = example_documents(split.examples, split.documents, "self-pretraining")
        pages = build_pages(split.documents, tokenizer)
        rules = MaskingRules(
            tokenizer.special_tokens, self.max_masked, self.max_tokens, self.max_target, self.form == "code"
        )
        rows = _Rows(len(names), len(self.rates()), self.max_tokens, self.max_target)
        for number, (task, rate) in enumerate(self.rates().items()):
            (prompt,) = tokenizer.encode([PROMPTS[task]])
            for first in range(0, len(names), CHUNK):
                chunk = document[first : first + CHUNK]
                chosen = self._choose(pages, chunk, names[first : first + CHUNK], task, rate)
                rows.put(first, number, mask_pages(task, prompt, pages, chunk, chosen, rules))
        tensors = rows.tensors() | {"document": torch.from_numpy(document)}
        images = page_images(split.documents, tokenizer.image_size)
        notes = (*rows.notes(self.max_tokens, list(self.rates())), *missing_images(split.documents))
        return Examples(tensors, {"pixel_values": ("document", images)}, notes)

    def _choose(self, pages: Pages, document: np.ndarray, names: list[str], task: str, rate: float) -> np.ndarray:
        """Return the words to mask, bool [n, W]: those whose random draw, by the example's id, is below the rate."""
        counts = pages.bounds[document + 1] - pages.bounds[document]
        draws = np.ones((len(names), int(counts.max(initial=0))))
        for row, (name, count) in enumerate(zip(names, counts.tolist(), strict=True)):
            draws[row, :count] = reused_rng("hide", self.seed, task, name).random(count)
        if self.repeat_rate is None or task in ("layout", "reading"):  # these show the text
            return draws < rate
        word = pages.bounds[document][:, None] + np.arange(draws.shape[1])
        real = np.arange(draws.shape[1]) < counts[:, None]
        repeat = np.where(real, pages.repeat[np.where(real, word, 0)], 0) if len(pages.repeat) else np.zeros_like(word)
        other = np.take_along_axis(draws, np.arange(draws.shape[1]) + repeat, 1)
        return np.where(repeat == 0, draws < rate, (draws < self.repeat_rate) & (draws < other))

    def run(self, module: Any, inputs: Batch) -> Outputs:
        """Run all tasks of a batch in one pass: logits [B, K·T, V], hidden states likewise, mean features [B, d]."""
        count, tasks = inputs["input_ids"].shape[:2]
        flat = {name: inputs[name].flatten(0, 1) for name in TASK_KEYS}
        flat["labels"] = inputs["labels"].unflatten(1, (tasks, -1)).flatten(0, 1)
        if "pixel_values" in inputs:
            flat["pixel_values"] = inputs["pixel_values"].repeat_interleave(tasks, 0)
        out: Outputs = module(**flat)
        rows = {name: tensor.unflatten(0, (count, tasks)) for name, tensor in out.tensors().items()}
        features = rows.pop("features", None)
        joined = {name: tensor.flatten(1, 2) for name, tensor in rows.items()}
        return Outputs(**joined, features=None if features is None else features.mean(1))

    def loss(self, outputs: Outputs, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the mean over tasks of the mean cross-entropy of target tokens, and weight 1 per example; both [B]."""
        tasks = len(self.rates())
        picked, real = _target_log_probs(outputs, batch)
        sums, counts = (t.unflatten(1, (tasks, -1)).sum(-1) for t in (picked, real))
        return -(sums / counts.clamp_min(1.0)).mean(1) * batch["mask"], batch["mask"]

    def predict(self, module: Any, batch: Batch) -> dict[str, Any]:
        """Return `token_accuracy` and `log_likelihood` per target token, given the correct tokens before it."""
        outputs = self.run(module, {name: batch[name] for name in self.inputs if name in batch})
        picked, real = _target_log_probs(outputs, batch)
        correct = (outputs.logits.argmax(-1) == batch["labels"]) * real
        count = real.sum(-1).clamp_min(1.0)
        return {
            "token_accuracy": (correct.sum(-1) / count).tolist(),
            "log_likelihood": (picked.sum(-1) / count).tolist(),
        }

    def score(self, predictions: dict[str, Any], split: Any, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Return the predictions, which are scores."""
        return {name: np.array(predictions[name], np.float64) for name in self.metrics}


@dataclass(frozen=True)
class TextModeling(SelfPretraining):
    """Prediction of the text of masked words from their positions."""

    rate: Fraction = 0.5  # fraction of masked words

    def rates(self) -> dict[str, float]:
        """Return the task `text`."""
        return {"text": self.rate}


@dataclass(frozen=True)
class LayoutModeling(SelfPretraining):
    """Prediction of the positions of words whose position is masked."""

    rate: Fraction = 0.75  # fraction of words with a masked position

    def rates(self) -> dict[str, float]:
        """Return the task `layout`."""
        return {"layout": self.rate}


@dataclass(frozen=True)
class TextLayoutModeling(SelfPretraining):
    """Prediction of text and position of masked words."""

    rate: Fraction = 0.15  # fraction of masked words

    def rates(self) -> dict[str, float]:
        """Return the task `joint`."""
        return {"joint": self.rate}


@dataclass(frozen=True)
class MixedModeling(SelfPretraining):
    """Several of these tasks on every example; the loss is the mean over tasks."""

    tasks: tuple[Task, ...] = ("text", "layout", "joint")  # reading is not in FeDocVQA
    text_rate: Fraction = 0.5  # fraction of words with masked text
    layout_rate: Fraction = 0.75  # fraction of words with a masked position
    joint_rate: Fraction = 0.15  # fraction of words with both masked
    reading_rate: Fraction = 0.15  # fraction of words to copy

    def __post_init__(self) -> None:
        """Raise ConfigError for no task, or a task named twice."""
        if not self.tasks or len(set(self.tasks)) < len(self.tasks):
            raise ConfigError(f"tasks: {list(self.tasks)} given; allowed: text, layout, joint, reading, each once")

    def rates(self) -> dict[str, float]:
        """Return the rates of `tasks`."""
        return {task: getattr(self, f"{task}_rate") for task in self.tasks}


class _Rows:
    """Masked pages by example and task, in arrays of maximal size."""

    def __init__(self, count: int, tasks: int, max_tokens: int, max_target: int) -> None:
        self.ids = np.full((count, tasks, max_tokens), PAD, np.int32)
        self.boxes = np.zeros((count, tasks, max_tokens, 4), np.int16)
        self.lengths = np.ones((count, tasks, 1), np.int64)
        self.labels = np.full((count, tasks, max_target), NO_LABEL, np.int64)
        self.longest_target = 1
        self.num_words, self.num_cut = np.zeros(tasks, np.int64), np.zeros(tasks, np.int64)

    def put(self, first: int, task: int, masked: Masked) -> None:
        """Store masked pages as the examples from `first` on."""
        length, target, rows = masked.ids.shape[1], masked.target.shape[1], slice(first, first + len(masked.ids))
        self.ids[rows, task, :length], self.boxes[rows, task, :length] = masked.ids, masked.boxes
        self.lengths[rows, task, 0], self.labels[rows, task, :target] = masked.lengths, masked.target
        self.longest_target = max(self.longest_target, target)
        self.num_words[task] += masked.num_words
        self.num_cut[task] += masked.num_cut

    def notes(self, max_tokens: int, tasks: list[str]) -> list[str]:
        """Return the number of words that the limit cuts, for each task."""
        counts = zip(tasks, self.num_words.tolist(), self.num_cut.tolist(), strict=True)
        return [
            f"max_tokens {max_tokens}: {cut:,} of {n:,} words are cut, in the task {t}" for t, n, cut in counts if cut
        ]

    def tensors(self) -> dict[str, Tensor]:
        """Return the rows, cut to the longest."""
        length = round_up(int(self.lengths.max(initial=1)), 16, self.ids.shape[2])
        target = round_up(self.longest_target, 4, self.labels.shape[2])
        return {
            "input_ids": torch.from_numpy(self.ids[..., :length].copy()),
            "boxes": torch.from_numpy(self.boxes[:, :, :length].copy()),
            "attention_mask": torch.from_numpy(np.arange(length) < self.lengths),
            "labels": torch.from_numpy(self.labels[..., :target].reshape(len(self.labels), -1)),
        }


def _target_log_probs(outputs: Outputs, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the log-probability of each target token, 0 elsewhere, and a mask of them; both [B, K·T]."""
    labels = batch["labels"]
    real = (labels != NO_LABEL).to(outputs.logits.dtype) * batch["mask"][..., None]
    picked = outputs.logits.log_softmax(-1).gather(-1, labels.clamp_min(0)[..., None]).squeeze(-1)
    return picked * real, real
