"""Visual question answering as classification over a list of answers (VQA), or among given texts (VCR).

The document of an example is its image; `second` is a second image. `choices` are texts to choose from, of which
`label` is the correct one. Clients can have lists of answers of their own, and heads of their own in one model.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn

from simfl.constraints import PositiveInt
from simfl.errors import ConfigError, DataError, nearest
from simfl.objectives.answers import AnswerRule, Normalization, SoftRule, build_targets, read_lists
from simfl.objectives.base import Objective, require_documents
from simfl.objectives.notes import cut_questions, missing_answers, missing_images
from simfl.objectives.pages import example_documents, page_images
from simfl.protocol import Batch, Examples, Outputs

NO_LABEL = -100


@dataclass(frozen=True)
class Vqa(Objective):
    """Classification of the answer to a question about an image; scored by soft accuracy."""

    criterion: Literal["softmax", "sigmoid"] = "softmax"  # cross-entropy over answers, or of each answer
    answers: str | tuple[str, ...] | None = None  # list, file of lines, or JSON by group; null: labels of the data
    soft: SoftRule = "auto"  # score of an answer by the people who gave it; auto: vqa, with fewer than 4 people share
    normalize: Normalization = "plain"  # of answers that are compared; vqa: also articles, numbers, punctuation
    by: str = "group"  # column that names an example's list and its task, such as dataset or scene
    tasks: tuple[str, ...] = ()  # values of that column, in the order of the model's heads
    max_tokens: PositiveInt = 40  # of the question, with start and end token; longer ones are cut

    reduction: ClassVar[str] = "example"
    inputs: ClassVar[tuple[str, ...]] = ("input_ids", "attention_mask", "pixel_values", "head", "num_answers")
    metric: ClassVar[str] = "accuracy"
    metrics: ClassVar[tuple[str, ...]] = ("accuracy", "exact")
    target: ClassVar[str] = "label"

    def check(self, split: Any) -> None:
        """Raise DataError without documents with images, or without questions."""
        require_documents(split, "vqa", ("document", "question"))

    def encode(self, split: Any, tokenizer: Any) -> Examples:
        """Return the examples of a split.

        Rows: `input_ids` int32 and `attention_mask` bool [N, L] or [N, pairs, L], `labels` and `scores` [N, K], `label`
        [N] (the best, −100: none), and if there are any `num_answers` and `head` [N]. Shared: `pixel_values` uint8
        [documents, 3, S, S]. Raises DataError if the split has no documents or no answers.
        """
        if tokenizer is None:
            raise DataError("vqa: needs documents and a model with a tokenizer; the model has none")
        self.check(split)
        examples = split.examples
        correct = build_targets(examples, self._rule)
        ids, num_cut = self._texts(examples, tokenizer)
        document = _documents(examples, split.documents, ids.shape[1])
        ids = ids if ids.shape[1] == document.shape[1] else np.repeat(ids, document.shape[1], 1)
        rows = {
            "input_ids": torch.from_numpy(ids if ids.shape[1] > 1 else ids[:, 0]),
            "label": torch.tensor([NO_LABEL if label < 0 else label for label in correct.best()], dtype=torch.int64),
            "labels": torch.from_numpy(correct.labels),
            "scores": torch.from_numpy(correct.scores),
            "document": torch.from_numpy(document if document.shape[1] > 1 else document[:, 0]),
        }
        rows["attention_mask"] = rows["input_ids"] != 0
        if correct.num_answers is not None:
            rows["num_answers"] = torch.from_numpy(correct.num_answers)
        if self.tasks:
            rows["head"] = self._heads(examples)
        unlisted = int((correct.labels < 0).all(1).sum())
        notes = cut_questions(num_cut, len(ids), self.max_tokens)
        notes += missing_answers(unlisted, len(ids), "that can be chosen, so they teach nothing and score 0")
        pages = {"pixel_values": ("document", page_images(split.documents, tokenizer.image_size))}
        return Examples(rows, pages, (*notes, *missing_images(split.documents)))

    def _texts(self, examples: Any, tokenizer: Any) -> tuple[np.ndarray, int]:
        """Return tokens int32 [N, texts, L], 0 for padding, and the number of examples with a cut text.

        A choice follows its question.
        """
        questions = tokenizer.encode(examples["question"].to_pylist())
        cut = np.array([len(question) > self.max_tokens - 2 for question in questions], bool)
        texts = [[[tokenizer.start_id, *q[: self.max_tokens - 2], tokenizer.end_id]] for q in questions]
        if "choices" in examples.column_names:
            choices = [row or [] for row in examples["choices"].to_pylist()]
            encoded = tokenizer.encode([text for row in choices for text in row])
            owner = np.repeat(np.arange(len(choices)), [len(row) for row in choices])
            room = self.max_tokens - 3
            for example, text in zip(owner.tolist(), encoded, strict=True):
                cut[example] |= len(text) + len(questions[example]) > room
            tokens = iter(encoded)
            texts = [
                [_cut(q, next(tokens), self.max_tokens, tokenizer) for _ in row] or only
                for q, row, only in zip(questions, choices, texts, strict=True)
            ]
        longest = max((len(text) for row in texts for text in row), default=1)
        length = min(-(-longest // 8) * 8, self.max_tokens)
        ids = np.zeros((len(texts), max(map(len, texts), default=1), length), np.int32)
        for example, row in enumerate(texts):
            for k, text in enumerate(row if len(row) > 1 else row * ids.shape[1]):
                ids[example, k, : len(text)] = text
        return ids, int(cut.sum())

    def _heads(self, examples: Any) -> Tensor:
        if self.by not in examples.column_names:
            raise DataError(f"vqa: the examples have no column {self.by!r}; their columns: {examples.column_names}")
        number = {name: k for k, name in enumerate(self.tasks)}
        for name in sorted(set(examples[self.by].to_pylist()) - set(number)):
            raise ConfigError(f"objective.tasks: the data have a task {name!r}; {nearest(name, number)}")
        return torch.tensor([number[name] for name in examples[self.by].to_pylist()])

    def loss(self, outputs: Outputs, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the cross-entropy of logits [B, V] with the answers' scores, and weight 1 per example; both [B].

        softmax: −Σ s log p over Σ s, 0 if no answer is in the list. sigmoid: summed over the answers (ViLT, FedDAT).
        """
        logits, labels = outputs.logits, batch["labels"]
        scores = batch["scores"] * (labels >= 0)
        at = labels.clamp_min(0)
        if self.criterion == "sigmoid":
            every = nn.functional.softplus(logits).sum(-1)
            return (every - (logits.gather(-1, at) * scores).sum(-1)) * batch["mask"], batch["mask"]
        picked = (logits.log_softmax(-1).gather(-1, at) * scores).sum(-1)
        return -picked / scores.sum(-1).clamp_min(1e-6) * batch["mask"], batch["mask"]

    def predict(self, module: nn.Module, batch: Batch) -> dict[str, Any]:
        """Return the most likely `label` [B] and its probability, `confidence` [B]."""
        out = module(**{name: batch[name] for name in self.inputs if name in batch})
        confidence, label = out.logits.softmax(-1).max(-1)
        return {"label": label.tolist(), "confidence": confidence.tolist()}

    def score(self, predictions: dict[str, Any], split: Any, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Return `accuracy`, the score of the chosen answer, and `exact`, 1 if it is among the best."""
        return build_targets(split.examples.take(rows), self._rule).scores_of(predictions["label"])

    def perfect(self, split: Any, rows: np.ndarray) -> dict[str, Any] | None:
        """Return the answers with the highest scores; None where the data bring their own scores."""
        if "scores" in split.examples.column_names:
            return None
        return {"label": build_targets(split.examples.take(rows), self._rule).best()}

    @cached_property
    def _rule(self) -> AnswerRule:
        return AnswerRule(read_lists(self.answers), self.by, self.soft, self.normalize)


def _cut(question: list[int], choice: list[int], max_tokens: int, tokenizer: Any) -> list[int]:
    """Return start token, question, end token, choice, end token, with the question cut to fit."""
    choice = choice[: max_tokens - 3]
    return [tokenizer.start_id, *question[: max_tokens - 3 - len(choice)], tokenizer.end_id, *choice, tokenizer.end_id]


def _documents(examples: Any, documents: Any, pairs: int) -> np.ndarray:
    first = example_documents(examples, documents, "vqa")
    if "second" in examples.column_names:
        second = examples["second"].fill_null(-1).to_numpy().astype(np.int64)
        for row in np.flatnonzero(second >= documents.num_rows)[:1].tolist():
            raise DataError(f"vqa: row {row}: second {second[row]}, but there are {documents.num_rows} documents")
        columns = [first, np.where(second < 0, first, second)]
        return np.stack(columns + [first] * (pairs - 2), 1)
    return np.repeat(first[:, None], pairs, 1)
