"""Extraction of the answer to a question from the words of a page, by models such as LayoutLMv3 (Huang et al. 2022).

The model reads the question, the words with their boxes, and the image, and gives each token a score as the first and
as the last of the answer. Learned is the first place where the words of an answer follow each other on the page; an
example without one is not learned from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from simfl import metrics
from simfl.constraints import PositiveInt
from simfl.errors import DataError
from simfl.objectives.answers import answer_lists
from simfl.objectives.base import Objective, require_documents
from simfl.objectives.docvqa import NO_LABEL, round_up, token_losses
from simfl.objectives.notes import missing_images
from simfl.objectives.page_inputs import (
    PAGE_KEYS,
    PageProcessor,
    Words,
    encode_pages,
    has_images,
    page_inputs,
    page_words,
)
from simfl.objectives.pages import example_documents
from simfl.objectives.text_tokenizer import check_length, require_text_tokenizer
from simfl.protocol import Batch, Examples, Outputs

STEP = 8  # lengths are rounded up to a multiple
WORD = "word"  # batch key: the index of each token's word; −1 for other tokens and padding
SCORES = {"anls": metrics.anls, "accuracy": metrics.normalized_match, "exact": metrics.exact_match}


@dataclass(frozen=True)
class Spans(Objective):
    """The first and the last token of an answer on the page; scored by ANLS and accuracy."""

    max_tokens: PositiveInt = 512  # of question and words; words are left out from the end until it fits
    max_answer: PositiveInt = 32  # tokens of a predicted answer
    metric: Literal["anls", "accuracy", "exact"] = "anls"  # type: ignore[misc]  # the main metric

    reduction: ClassVar[str] = "token"
    inputs: ClassVar[tuple[str, ...]] = ("input_ids", "attention_mask", "bbox", *PAGE_KEYS)
    metrics: ClassVar[tuple[str, ...]] = tuple(SCORES)
    target: ClassVar[str] = "labels"

    def check(self, split: Any) -> None:
        """Raise DataError without documents, questions or answers."""
        require_documents(split, "spans", ("document", "question", "answers"), ("id", "words", "boxes"))

    def encode(self, split: Any, tokenizer: Any) -> Examples:
        """Return the examples of a split.

        Rows, with L the split's longest, rounded up to 8: `input_ids`, `attention_mask` and `word` int64 [N, L],
        `bbox` int64 [N, L, 4] in thousandths of the page, and `labels` int64 [N, 2], the first and the last token of
        the answer; −100 where the page does not have it. Shared: the features of pages.

        Raises:
            DataError: A column is missing, a question does not fit without words, or the model reads no boxes.
        """
        given = require_text_tokenizer(tokenizer, "spans")
        processor = given.processor
        if processor is None or not processor.reads_boxes:
            raise DataError("spans: needs a model that reads words with boxes, such as one of model_type layoutlmv3")
        self.check(split)
        pages = encode_pages(split, processor, "spans") if has_images(split) else None
        words, of_example = page_words(split, "spans"), example_documents(split.examples, split.documents, "spans")
        questions = split.examples["question"].to_pylist()
        encoded, cut = [], 0
        for row, (question, page) in enumerate(zip(questions, of_example.tolist(), strict=True)):
            inputs, kept = self._fitting(row, question, words[page], processor)
            encoded.append(inputs)
            cut += kept < len(words[page].texts)
        check_length(given, max((len(one["input_ids"]) for one in encoded), default=0), "spans", "max_tokens")
        answers = answer_lists(split.examples)
        known = zip(encoded, of_example.tolist(), answers, strict=True)
        spans = [_label(one[WORD], words[page].texts, texts) for one, page, texts in known]
        labels = np.array(spans, np.int64).reshape(-1, 2)
        rows = _rows(encoded, given.pad_id) | {"labels": labels, "document": of_example}
        shared = {}
        if pages is not None:
            rows |= {name: counts.numpy()[of_example] for name, counts in pages.counts.items()}
            shared = {name: ("document", table) for name, table in pages.tables.items()}
        found = {name: torch.from_numpy(table) for name, table in rows.items()}
        blank = missing_images(split.documents) if pages is not None else []
        return Examples(found, shared, (*self._notes(labels, cut), *blank))

    def _notes(self, labels: np.ndarray, cut: int) -> tuple[str, ...]:
        missing = int((labels[:, 0] == NO_LABEL).sum())
        lost = f"the words of {missing:,} of {len(labels):,} answers are not on their page; they are not learned"
        long = f"max_tokens {self.max_tokens}: words are cut in {cut:,} of {len(labels):,} examples"
        return (*[lost] * bool(missing), *[long] * bool(cut))

    def _fitting(
        self, row: int, question: str, words: Words, processor: PageProcessor
    ) -> tuple[dict[str, np.ndarray], int]:
        """Return the inputs of a question with as many words as fit, and their number."""
        kept = len(words.texts)
        inputs = processor.encode_words(question, words.texts, words.boxes)
        while len(inputs["input_ids"]) > self.max_tokens and kept:
            surplus = len(inputs["input_ids"]) - self.max_tokens
            of_words = inputs[WORD][inputs[WORD] >= 0]
            kept = int(of_words[-surplus]) if surplus <= len(of_words) else 0
            some = words.first(kept)
            inputs = processor.encode_words(question, some.texts, some.boxes)
        if len(inputs["input_ids"]) > self.max_tokens:
            raise DataError(f"spans: the question of row {row} has more than max_tokens {self.max_tokens} tokens")
        return inputs, kept

    def run(self, module: Any, inputs: Batch) -> Outputs | Tensor:
        """Run the model; its scores of first and last tokens are logits [B, 2, L]."""
        outputs: Outputs = module(**page_inputs(module, inputs))
        return outputs

    def loss(self, outputs: Outputs, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the cross-entropy of the first and the last token of each answer, and how many are known; both [B]."""
        return token_losses(outputs, batch)

    def predict(self, module: Any, batch: Batch) -> dict[str, Any]:
        """Return `answer`, the words of the best span of at most `max_answer` tokens, and its `confidence`."""
        found = self.run(module, {name: batch[name] for name in self.inputs if name in batch})
        on_page = batch[WORD] >= 0
        ends: Any = found
        scores = torch.stack((ends.start_logits, ends.end_logits), 1).float()
        scores = scores[..., : on_page.shape[1]]  # the patches of the image follow the words
        scores = scores.masked_fill(~on_page[:, None], -torch.inf).log_softmax(-1)
        both = scores[:, 0, :, None] + scores[:, 1, None, :]
        length = both.shape[-1]
        allowed = torch.ones(length, length, dtype=torch.bool, device=both.device).triu().tril(self.max_answer - 1)
        both = both.masked_fill(~allowed, -torch.inf).nan_to_num(nan=-torch.inf).flatten(1)
        best, place = both.max(1)
        first, last = (place // length).tolist(), (place % length).tolist()
        ids, words = batch["input_ids"].tolist(), batch[WORD].tolist()
        spans = [
            _whole_words(row, word, a, b) if ok else []
            for row, word, a, b, ok in zip(ids, words, first, last, torch.isfinite(best).tolist(), strict=True)
        ]
        return {"answer": module.hf_tokenizer.decode(spans), "confidence": best.exp().tolist()}

    def score(self, predictions: dict[str, Any], split: Any, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Return every metric of each answer."""
        answers = answer_lists(split.examples.select(["answers"]).take(rows))
        pairs = list(zip(predictions["answer"], answers, strict=True))
        return {
            name: np.array([rule(given, right) for given, right in pairs], np.float64) for name, rule in SCORES.items()
        }

    def perfect(self, split: Any, rows: np.ndarray) -> dict[str, Any]:
        """Return the first answers."""
        return {"answer": [(a or [""])[0] for a in answer_lists(split.examples.select(["answers"]).take(rows))]}


def _rows(encoded: Sequence[dict[str, np.ndarray]], pad: int) -> dict[str, np.ndarray]:
    """Return the inputs of all examples, padded on the right."""
    length = round_up(max((len(one["input_ids"]) for one in encoded), default=1), STEP, 1 << 30)
    shape = (len(encoded), length)
    rows: dict[str, np.ndarray] = {
        "input_ids": np.full(shape, pad, np.int64), "attention_mask": np.zeros(shape, np.int64),
        "bbox": np.zeros((*shape, 4), np.int64), WORD: np.full(shape, -1, np.int64),
    }  # fmt: skip
    for row, one in enumerate(encoded):
        size = len(one["input_ids"])
        rows["attention_mask"][row, :size] = 1
        for name in ("input_ids", "bbox", WORD):
            rows[name][row, :size] = one[name]
    return rows


def _label(word: np.ndarray, texts: Sequence[str], answers: Sequence[str]) -> tuple[int, int]:
    """Return the first and the last token of the first answer that is on the page; `NO_LABEL` twice if none is."""
    plain = [metrics.normalize_answer(text) for text in texts[: int(word.max(initial=-1)) + 1]]
    for answer in answers:
        wanted = [metrics.normalize_answer(part) for part in answer.split()]
        for start in range(len(plain) - len(wanted) + 1) if wanted else ():
            if plain[start : start + len(wanted)] == wanted:
                first = np.flatnonzero(word == start)
                last = np.flatnonzero(word == start + len(wanted) - 1)
                if len(first) and len(last):
                    return int(first[0]), int(last[-1])
    return NO_LABEL, NO_LABEL


def _whole_words(ids: Sequence[int], words: Sequence[int], first: int, last: int) -> list[int]:
    """Return the tokens of all words that a span touches."""
    inside = range(words[first], words[last] + 1)
    return [token for token, word in zip(ids, words, strict=True) if word in inside]
