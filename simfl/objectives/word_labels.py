"""Labels of the words of a page or a text, by models of token classification, such as LayoutLMv3 on FUNSD.

The first token of each word is learned and read. Models that read boxes and images are given those of the page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from simfl.constraints import PositiveInt
from simfl.errors import ConfigError, DataError, nearest
from simfl.objectives.base import Objective, require_columns
from simfl.objectives.docvqa import NO_LABEL, round_up, token_losses
from simfl.objectives.page_inputs import PAGE_KEYS, Words, encode_pages, has_images, page_inputs, page_words
from simfl.objectives.pages import example_documents
from simfl.objectives.text_tokenizer import TextTokenizer, check_length, require_text_tokenizer
from simfl.protocol import Batch, Examples, Outputs

STEP = 8  # lengths are rounded up to a multiple
WORD = "word"  # batch key: the index of the word of which a token is the first; −1 for other tokens
Span = tuple[str, int, int]  # kind, first and last word


@dataclass(frozen=True)
class WordLabels(Objective):
    """Cross-entropy of the label of each word; scored by the F1 of labelled spans and the accuracy of words.

    Labels that begin with B- or I- make spans, as in FUNSD; a span is right if its kind and its words are. Scores are
    means over pages.
    """

    classes: tuple[str, ...] = ()  # names of the labels, in the order of their numbers; at least two
    labels: str = "labels"  # column of the examples: a list with the name or the number of each word's label
    max_tokens: PositiveInt = 512  # words are left out from the end until they fit; they count as not labelled
    metric: Literal["f1", "accuracy"] = "f1"  # type: ignore[misc]  # the main metric

    reduction: ClassVar[str] = "token"
    inputs: ClassVar[tuple[str, ...]] = ("input_ids", "attention_mask", "bbox", *PAGE_KEYS)
    metrics: ClassVar[tuple[str, ...]] = ("f1", "accuracy")
    target: ClassVar[str] = "labels"
    example: ClassVar[dict[str, object]] = {"classes": ["O", "B-TOTAL", "I-TOTAL"]}

    def __post_init__(self) -> None:
        """Raise ConfigError for fewer than two classes, or one that is given twice."""
        if len(self.classes) < 2 or len(set(self.classes)) < len(self.classes):
            raise ConfigError(f"objective.classes: {list(self.classes)} given; allowed: at least two different names")

    def num_classes(self, known: int | None) -> int | None:
        """Return the number of labels."""
        return len(self.classes)

    def check(self, split: Any) -> None:
        """Raise DataError without words, or if the labels are not one for each word, of the classes."""
        require_columns(split.examples, (self.labels,), "word_labels: the examples")
        if split.documents is None:
            require_columns(split.examples, ("words",), "word_labels: the examples")
        else:
            require_columns(split.documents, ("id", "words"), "word_labels: the documents")
        for row, (words, labels) in enumerate(zip(_words(split), self._numbers(split), strict=True)):
            if len(words.texts) != len(labels):
                raise DataError(f"word_labels: row {row} has {len(words.texts)} words and {len(labels)} labels")

    def _numbers(self, split: Any) -> list[list[int]]:
        """Return the numbers of the labels of each example; DataError for a label that is no class."""
        numbers = {name: number for number, name in enumerate(self.classes)}
        found: list[list[int]] = []
        for row, labels in enumerate(split.examples[self.labels].to_pylist()):
            if not isinstance(labels, list):
                raise DataError(f"word_labels: row {row}, column {self.labels!r}: expected a list of labels")
            for label in labels:
                if label not in numbers and not (isinstance(label, int) and 0 <= label < len(numbers)):
                    raise DataError(f"word_labels: row {row}: unknown label {label!r}; {nearest(str(label), numbers)}")
            found.append([label if isinstance(label, int) else numbers[label] for label in labels])
        return found

    def encode(self, split: Any, tokenizer: Any) -> Examples:
        """Return the examples of a split.

        Rows, with L the split's longest, rounded up to 8: `input_ids`, `attention_mask`, `labels` and `word` int64
        [N, L], and `bbox` int64 [N, L, 4] in thousandths of the page for models that read boxes. `labels` are −100 for
        tokens that begin no word. Shared: the features of pages.

        Raises:
            DataError: A column is missing, or labels and words do not match.
        """
        given = require_text_tokenizer(tokenizer, "word_labels")
        self.check(split)
        encoded = [self._fitting(given, words) for words in _words(split)]
        numbers = self._numbers(split)
        check_length(given, max((len(one["input_ids"]) for one in encoded), default=0), "word_labels", "max_tokens")
        rows = _padded(encoded, numbers, given.pad_id)
        kept = sum(int(word.max(initial=-1)) + 1 for word in rows[WORD])
        total = sum(map(len, numbers))
        notes = (f"max_tokens {self.max_tokens}: {total - kept:,} of {total:,} words are left out",) * (kept < total)
        shared = {}
        if given.processor is not None and has_images(split):
            pages = encode_pages(split, given.processor, "word_labels")
            rows |= {"document": pages.of_example} | {n: c.numpy()[pages.of_example] for n, c in pages.counts.items()}
            shared = {name: ("document", table) for name, table in pages.tables.items()}
        return Examples({name: torch.from_numpy(table) for name, table in rows.items()}, shared, notes)

    def _fitting(self, tokenizer: TextTokenizer, words: Words) -> dict[str, np.ndarray]:
        """Return the inputs of as many words as fit."""
        found = _inputs(tokenizer, words)
        while len(found["input_ids"]) > self.max_tokens and words.texts:
            surplus = len(found["input_ids"]) - self.max_tokens
            begun = found[WORD][: len(found[WORD]) - surplus]
            words = words.first(min(len(words.texts) - 1, int(begun.max(initial=0))))
            found = _inputs(tokenizer, words)
        return found

    def run(self, module: Any, inputs: Batch) -> Outputs | Tensor:
        """Run the model; logits are [B, L, classes].

        Raises:
            ConfigError: The model has another number of labels.
        """
        outputs: Any = module(**page_inputs(module, inputs))
        if outputs.logits.shape[-1] != len(self.classes):
            found = outputs.logits.shape[-1]
            raise ConfigError(
                f"model.config.num_labels: {found} given, but objective.classes has {len(self.classes)} names"
            )
        result: Outputs = outputs
        return result

    def loss(self, outputs: Outputs, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the cross-entropy summed over the words of each example, and their number; both [B]."""
        return token_losses(outputs, batch)

    def predict(self, module: Any, batch: Batch) -> dict[str, Any]:
        """Return `labels`, the names of the labels of the words that the model has read."""
        found: Any = self.run(module, {name: batch[name] for name in self.inputs if name in batch})
        likeliest = found.logits.argmax(-1).tolist()
        rows = zip(batch[WORD].tolist(), likeliest, strict=True)
        return {"labels": [[self.classes[label] for w, label in zip(*row, strict=True) if w >= 0] for row in rows]}

    def score(self, predictions: dict[str, Any], split: Any, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Return the F1 of the spans of each example, and the share of its words whose labels are right."""
        truth = self._names(split, rows)
        pairs = list(zip(predictions["labels"], truth, strict=True))
        right = [[a == b for a, b in zip(found, true, strict=False)] for found, true in pairs]
        return {
            "f1": np.array([_f1(_spans(found), _spans(true)) for found, true in pairs], np.float64),
            "accuracy": np.array([sum(r) / max(1, len(t)) for r, t in zip(right, truth, strict=True)], np.float64),
        }

    def perfect(self, split: Any, rows: np.ndarray) -> dict[str, Any]:
        """Return the true labels."""
        return {"labels": self._names(split, rows)}

    def _names(self, split: Any, rows: np.ndarray) -> list[list[str]]:
        numbers = self._numbers(split)
        return [[self.classes[label] for label in numbers[row]] for row in rows.tolist()]


def _words(split: Any) -> list[Words]:
    """Return the words of each example, with boxes where documents have them."""
    if split.documents is None:
        lists = [words or [] for words in split.examples["words"].to_pylist()]
        return [Words(words, np.zeros((len(words), 4), np.int64)) for words in lists]
    pages = page_words(split, "word_labels")
    return [pages[page] for page in example_documents(split.examples, split.documents, "word_labels")]


def _inputs(tokenizer: TextTokenizer, words: Words) -> dict[str, np.ndarray]:
    """Return `input_ids` [L], `word` [L], and `bbox` [L, 4] for models that read boxes."""
    if tokenizer.processor is not None and tokenizer.processor.reads_boxes:
        found = tokenizer.processor.encode_words("", words.texts, words.boxes)
    else:
        encoded = tokenizer.tokenizer(words.texts, is_split_into_words=True)
        ids = [-1 if word is None else word for word in encoded.word_ids()]
        found = {"input_ids": np.array(encoded["input_ids"], np.int64), WORD: np.array(ids, np.int64)}
    again = np.r_[False, found[WORD][1:] == found[WORD][:-1]]
    return {**found, WORD: np.where(again, -1, found[WORD])}


def _padded(encoded: Sequence[dict[str, np.ndarray]], labels: Sequence[list[int]], pad: int) -> dict[str, np.ndarray]:
    """Return the inputs and labels of all examples, padded on the right."""
    length = round_up(max((len(one["input_ids"]) for one in encoded), default=1), STEP, 1 << 30)
    fill = {"input_ids": pad, WORD: -1, "bbox": 0}
    rows: dict[str, np.ndarray] = {
        name: np.full((len(encoded), length, *table.shape[1:]), fill[name], np.int64)
        for name, table in (encoded[0] if encoded else {}).items()
    }
    rows["attention_mask"] = np.zeros((len(encoded), length), np.int64)
    rows["labels"] = np.full((len(encoded), length), NO_LABEL, np.int64)
    for row, (one, numbers) in enumerate(zip(encoded, labels, strict=True)):
        size = len(one["input_ids"])
        rows["attention_mask"][row, :size] = 1
        for name, table in one.items():
            rows[name][row, :size] = table
        begins = one[WORD] >= 0
        rows["labels"][row, :size][begins] = np.array(numbers, np.int64)[one[WORD][begins]]
    return rows


def _spans(labels: Sequence[str]) -> set[Span]:
    """Return the spans of labels in BIO; a label without a prefix, other than O, is a span of one word."""
    found: set[Span] = set()
    first, kind = 0, ""
    for place, label in enumerate([*labels, "O"]):
        prefix, _, name = label.rpartition("-") if label[:2] in ("B-", "I-") else ("B" * (label != "O"), "", label)
        if kind and not (prefix == "I" and name == kind):
            found.add((kind, first, place - 1))
            kind = ""
        if prefix and not kind:
            first, kind = place, name
    return found


def _f1(found: set[Span], true: set[Span]) -> float:
    """Return the harmonic mean of precision and recall; 1 if there is nothing to find and nothing was."""
    return 2 * len(found & true) / (len(found) + len(true)) if found or true else 1.0
