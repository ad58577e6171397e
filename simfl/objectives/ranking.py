"""Questions about an image, answered by spelling; a list of answers is ranked (ALBEF, Li et al. 2021; FedDAT, 2024).

Each client has its own list: that of its group. What is learnt are the people's answers, whether listed or not.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from simfl.constraints import Count
from simfl.errors import ConfigError, DataError
from simfl.metrics import normal
from simfl.objectives.answers import Lists, groups_of, people, read_lists, targets
from simfl.objectives.base import Objective
from simfl.objectives.images import pictures, table
from simfl.protocol import Batch, Examples, Outputs

NO_LABEL = -100


@dataclass(frozen=True)
class Ranking(Objective):
    """Spell the answer to a question about an image; scored by the soft accuracy of the best of a list."""

    answers: str | tuple[str, ...]  # the list, or a file: an answer a line, or JSON by group
    by: str = "group"  # the column that names an example's list, such as dataset or scene
    soft: Literal["vqa", "share", "any"] = "vqa"  # an answer's score by the people who gave it
    most: Count = 4  # different answers of an example that are learnt, the most frequent
    ranked: Count = 64  # answers of the list that are spelt out, those whose first piece is likeliest
    first_twice: bool = False  # count that first piece twice, as the published code does
    max_tokens: Count = 25  # of the question, with its first and last piece
    max_answer: Count = 12  # pieces of an answer, with its end

    reduction: ClassVar[str] = "example"
    inputs: ClassVar[tuple[str, ...]] = ("input_ids", "attention_mask", "pixel_values", "labels")
    metric: ClassVar[str] = "accuracy"
    metrics: ClassVar[tuple[str, ...]] = ("accuracy", "exact")

    def encode(self, split: Any, tokenizer: Any) -> Examples:
        """Rows `input_ids` int32, `attention_mask` bool [N, L], `labels` int64 [N, K, T] (−100 behind the end),
        `shares` [N, K], `num_answers` [N].

        Shared: `pixel_values` uint8 [documents, 3, S, S], and the lists `candidates` int64 [groups, A, T]. DataError if
        the split has no documents or no answers.
        """
        if split.documents is None or tokenizer is None:
            raise DataError("ranking: needs documents and a model that reads text; the data or the model have none")
        examples = split.examples
        if "answers" not in examples.column_names:
            raise DataError(f"ranking: the examples have no column 'answers', but {examples.column_names}")
        labels, shares = self._spelt(people(examples), tokenizer)
        number, candidates, sizes = self._candidates(tokenizer)
        lists = np.array([self._list_of(group, number) for group in groups_of(examples, self.by)], np.int64)
        ids = self._questions(examples["question"].to_pylist(), tokenizer)
        rows = {
            "input_ids": torch.from_numpy(ids),
            "attention_mask": torch.from_numpy(ids != 0),
            "labels": torch.from_numpy(labels),
            "shares": torch.from_numpy(shares),
            "document": torch.from_numpy(examples["document"].to_numpy().astype(np.int64)),
            "list": torch.from_numpy(lists),
            "num_answers": torch.from_numpy(sizes[lists]),
        }
        names = [f"document {name}" for name in split.documents["id"].to_pylist()]
        size = (tokenizer.image_size, tokenizer.image_size)
        pixels = table(pictures(split.documents), "RGB", size, names)
        shared = {"pixel_values": ("document", pixels), "candidates": ("list", torch.from_numpy(candidates))}
        return Examples(rows, shared)

    def _spelt(self, told: list[Counter[str]], tokenizer: Any) -> tuple[np.ndarray, np.ndarray]:
        """Pieces [N, K, T] of each example's most frequent answers, and the share of the people who gave each."""
        kept = []
        for tally in told:
            first = sorted(tally.items(), key=lambda item: (-item[1], item[0]))[: self.most]
            kept.append([(text, n / tally.total()) for text, n in first])
        width = max(map(len, kept), default=1) or 1
        texts = sorted({text for row in kept for text, _ in row})
        pieces = dict(zip(texts, self._pieces(texts, tokenizer), strict=True))
        labels = np.full((len(kept), width, self._length(list(pieces.values()))), NO_LABEL, np.int64)
        shares = np.zeros((len(kept), width), np.float32)
        for row, found in enumerate(kept):
            for k, (text, share) in enumerate(found):
                labels[row, k, : len(pieces[text])], shares[row, k] = pieces[text], share
        return labels, shares

    def _candidates(self, tokenizer: Any) -> tuple[dict[str, int], np.ndarray, np.ndarray]:
        """The number of each group's list, their pieces [lists, A, T], their lengths [lists]."""
        lists = {name: self._pieces([normal(text) for text in texts], tokenizer) for name, texts in self._lists.items()}
        most, length = max(map(len, lists.values())), self._length([p for pieces in lists.values() for p in pieces])
        found = np.full((len(lists), most, length), NO_LABEL, np.int64)
        for row, pieces in enumerate(lists.values()):
            for k, answer in enumerate(pieces):
                found[row, k, : len(answer)] = answer
        sizes = np.array([len(pieces) for pieces in lists.values()], np.int64)
        return {name: k for k, name in enumerate(lists)}, found, sizes

    def _list_of(self, group: str, number: dict[str, int]) -> int:
        found = number.get(group, number.get(""))
        if found is None:
            raise DataError(f"ranking: there is no list for the group {group!r}; there are lists for {sorted(number)}")
        return found

    def _pieces(self, texts: list[str], tokenizer: Any) -> list[list[int]]:
        return [[*found[: self.max_answer - 1], tokenizer.end] for found in tokenizer.encode(texts)]

    def _length(self, pieces: list[list[int]]) -> int:
        return min(-(-max(map(len, pieces), default=1) // 4) * 4, self.max_answer)

    def _questions(self, texts: list[str], tokenizer: Any) -> np.ndarray:
        pieces = tokenizer.encode(texts)
        rows = [[tokenizer.start, *found[: self.max_tokens - 2], tokenizer.end] for found in pieces]
        ids = np.zeros((len(rows), min(-(-max(map(len, rows), default=1) // 8) * 8, self.max_tokens)), np.int32)
        for row, found in enumerate(rows):
            ids[row, : len(found)] = found
        return ids

    def loss(self, outputs: Outputs, batch: Batch) -> tuple[Tensor, Tensor]:
        """Cross-entropy summed over the pieces of each answer, times its share; logits [B, K·T, V], both [B]."""
        labels = batch["labels"]
        flat = labels.flatten(-2)
        real = (flat != NO_LABEL).to(outputs.logits.dtype)
        picked = outputs.logits.log_softmax(-1).gather(-1, flat.clamp_min(0)[..., None]).squeeze(-1) * real
        each = picked.unflatten(-1, labels.shape[-2:]).sum(-1)
        return -(each * batch["shares"]).sum(-1) * batch["mask"], batch["mask"]

    def predict(self, module: Any, batch: Batch) -> dict[str, Any]:
        """`label`, a number in the example's own list, and its `confidence`; `module` has ALBEF's `rank`."""
        given = (batch[name] for name in ("input_ids", "attention_mask", "pixel_values", "candidates", "num_answers"))
        label, chance = module.rank(*given, self.ranked, first_twice=self.first_twice)
        return {"label": label.tolist(), "confidence": chance.tolist()}

    def score(self, predictions: dict[str, Any], split: Any, rows: np.ndarray) -> dict[str, np.ndarray]:
        """`accuracy`: the score of the chosen answer, and `exact`: 1 where it is among the best."""
        return targets(split.examples.take(rows), self._lists, self.soft, self.by).scores_of(predictions["label"])

    @cached_property
    def _lists(self) -> Lists:
        lists = read_lists(self.answers)
        if not lists or not all(lists.values()):
            raise ConfigError("objective.answers: a list of answers is empty")
        return lists
