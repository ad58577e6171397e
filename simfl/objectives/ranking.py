"""Visual question answering by generation, with ranking of a list (ALBEF, Li et al. 2021; FedDAT, 2024).

Each client has the list of its group. Training uses the answers that people gave, whether in the list or not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from simfl.constraints import PositiveInt
from simfl.errors import ConfigError, DataError
from simfl.objectives.answers import (
    NORMALIZE,
    AnswerRule,
    Normalization,
    SoftRule,
    build_targets,
    count_answers,
    group_names,
    read_lists,
)
from simfl.objectives.base import Objective, require_documents
from simfl.objectives.notes import cut_questions, missing_answers, missing_images
from simfl.objectives.pages import example_documents, page_images
from simfl.protocol import Batch, Examples, Outputs

NO_LABEL = -100


@dataclass(frozen=True)
class Ranking(Objective):
    """Generation of the answer to a question about an image; scored by the soft accuracy of the best of a list."""

    answers: str | tuple[str, ...]  # the list, a file with one answer per line, or JSON by group
    by: str = "group"  # column that names an example's list, such as dataset or scene
    soft: SoftRule = "auto"  # score of an answer by the people who gave it; auto: vqa, with fewer than 4 people share
    normalize: Normalization = "plain"  # of answers that are compared; vqa: also articles, numbers, punctuation
    max_answers: PositiveInt = 4  # most frequent answers of an example to learn
    num_ranked: PositiveInt = 64  # answers of the list to score in full, those with the likeliest first token
    first_twice: bool = False  # count the first token twice, as the published code does
    max_tokens: PositiveInt = 25  # of the question, with start and end token
    max_answer: PositiveInt = 12  # tokens of an answer, with end token

    reduction: ClassVar[str] = "example"
    inputs: ClassVar[tuple[str, ...]] = ("input_ids", "attention_mask", "pixel_values", "labels")
    metric: ClassVar[str] = "accuracy"
    metrics: ClassVar[tuple[str, ...]] = ("accuracy", "exact")
    example: ClassVar[Mapping[str, object]] = {"answers": ["yes", "no"]}

    def check(self, split: Any) -> None:
        """Raise DataError without documents with images, questions or answers."""
        require_documents(split, "ranking", ("document", "question", "answers"))

    def encode(self, split: Any, tokenizer: Any) -> Examples:
        """Return the examples of a split.

        Rows: `input_ids` int32 and `attention_mask` bool [N, L], `labels` int64 [N, K, T] (−100: padding), `shares`
        [N, K] and `num_answers` [N]. Shared: `pixel_values` uint8 [documents, 3, S, S], and the lists `candidates`
        int64 [groups, A, T]. Raises DataError if the split has no documents or no answers.
        """
        if tokenizer is None:
            raise DataError("ranking: needs documents and a model with a tokenizer; the model has none")
        self.check(split)
        examples = split.examples
        labels, shares = self._labels(count_answers(examples, self.normalize), tokenizer)
        number, candidates, sizes = self._candidates(tokenizer)
        lists = np.array([self._list_of(group, number) for group in group_names(examples, self.by)], np.int64)
        ids, num_cut = self._questions(examples["question"].to_pylist(), tokenizer)
        rows = {
            "input_ids": torch.from_numpy(ids),
            "attention_mask": torch.from_numpy(ids != 0),
            "labels": torch.from_numpy(labels),
            "shares": torch.from_numpy(shares),
            "document": torch.from_numpy(example_documents(examples, split.documents, "ranking")),
            "list": torch.from_numpy(lists),
            "num_answers": torch.from_numpy(sizes[lists]),
        }
        pixels = page_images(split.documents, tokenizer.image_size)
        shared = {"pixel_values": ("document", pixels), "candidates": ("list", torch.from_numpy(candidates))}
        notes = cut_questions(num_cut, len(ids), self.max_tokens)
        notes += missing_answers(int((shares.sum(1) == 0).sum()), len(ids), "and teach the model nothing")
        return Examples(rows, shared, (*notes, *missing_images(split.documents)))

    def _labels(self, counters: list[Counter[str]], tokenizer: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return tokens [N, K, T] of each example's most frequent answers, and the fraction of people who gave each."""
        kept = []
        for counter in counters:
            first = sorted(counter.items(), key=lambda item: (-item[1], item[0]))[: self.max_answers]
            kept.append([(text, n / counter.total()) for text, n in first])
        most = max(map(len, kept), default=1) or 1
        texts = sorted({text for row in kept for text, _ in row})
        tokens = dict(zip(texts, self._tokens(texts, tokenizer), strict=True))
        labels = np.full((len(kept), most, self._length(list(tokens.values()))), NO_LABEL, np.int64)
        shares = np.zeros((len(kept), most), np.float32)
        for row, answers in enumerate(kept):
            for k, (text, share) in enumerate(answers):
                labels[row, k, : len(tokens[text])], shares[row, k] = tokens[text], share
        return labels, shares

    def _candidates(self, tokenizer: Any) -> tuple[dict[str, int], np.ndarray, np.ndarray]:
        """Return the index of each group's list, tokens [lists, A, T], and the number of answers [lists]."""
        normalize = NORMALIZE[self.normalize]
        lists = {
            name: self._tokens([normalize(text) for text in texts], tokenizer)
            for name, texts in self._rule.lists.items()
        }
        most, length = (
            max(map(len, lists.values())),
            self._length([ids for answers in lists.values() for ids in answers]),
        )
        candidates = np.full((len(lists), most, length), NO_LABEL, np.int64)
        for row, answers in enumerate(lists.values()):
            for k, ids in enumerate(answers):
                candidates[row, k, : len(ids)] = ids
        sizes = np.array([len(answers) for answers in lists.values()], np.int64)
        return {name: k for k, name in enumerate(lists)}, candidates, sizes

    def _list_of(self, group: str, number: dict[str, int]) -> int:
        index = number.get(group, number.get(""))
        if index is None:
            raise DataError(f"ranking: no list for the group {group!r}; allowed: {sorted(number)}")
        return index

    def _tokens(self, texts: list[str], tokenizer: Any) -> list[list[int]]:
        return [[*found[: self.max_answer - 1], tokenizer.end_id] for found in tokenizer.encode(texts)]

    def _length(self, tokens: list[list[int]]) -> int:
        return min(-(-max(map(len, tokens), default=1) // 4) * 4, self.max_answer)

    def _questions(self, texts: list[str], tokenizer: Any) -> tuple[np.ndarray, int]:
        """Return the tokens of the questions, and the number of those that are cut."""
        tokens = tokenizer.encode(texts)
        rows = [[tokenizer.start_id, *one[: self.max_tokens - 2], tokenizer.end_id] for one in tokens]
        ids = np.zeros((len(rows), min(-(-max(map(len, rows), default=1) // 8) * 8, self.max_tokens)), np.int32)
        for k, row in enumerate(rows):
            ids[k, : len(row)] = row
        return ids, sum(len(one) > self.max_tokens - 2 for one in tokens)

    def loss(self, outputs: Outputs, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the cross-entropy of each answer times its share, summed, and weight 1 per example; both [B].

        The logits are [B, K·T, V].
        """
        labels = batch["labels"]
        flat = labels.flatten(-2)
        real = (flat != NO_LABEL).to(outputs.logits.dtype)
        picked = outputs.logits.log_softmax(-1).gather(-1, flat.clamp_min(0)[..., None]).squeeze(-1) * real
        each = picked.unflatten(-1, labels.shape[-2:]).sum(-1)
        return -(each * batch["shares"]).sum(-1) * batch["mask"], batch["mask"]

    def predict(self, module: Any, batch: Batch) -> dict[str, Any]:
        """Return `label`, an index in the example's list, and its `confidence`; `module` has a `rank` like ALBEF's."""
        question = {name: batch[name] for name in ("input_ids", "attention_mask", "pixel_values")}
        answers, num_answers = batch["candidates"], batch["num_answers"]
        label, confidence = module.rank(question, answers, num_answers, self.num_ranked, first_twice=self.first_twice)
        return {"label": label.tolist(), "confidence": confidence.tolist()}

    def score(self, predictions: dict[str, Any], split: Any, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Return `accuracy`, the score of the chosen answer, and `exact`, 1 if it is among the best."""
        return build_targets(split.examples.take(rows), self._rule).scores_of(predictions["label"])

    def perfect(self, split: Any, rows: np.ndarray) -> dict[str, Any]:
        """Return the answers with the highest scores."""
        return {"label": build_targets(split.examples.take(rows), self._rule).best()}

    @cached_property
    def _rule(self) -> AnswerRule:
        lists = read_lists(self.answers)
        if not lists or not all(lists.values()):
            raise ConfigError("objective.answers: a list of answers is empty")
        return AnswerRule(lists, self.by, self.soft, self.normalize)
