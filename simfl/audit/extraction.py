"""Extraction of fields: a field is erased from a page, and the model is asked for it (Pinto et al. 2024).

The words of the answer are removed from the page, and their place in the image is painted white. An answer that is
still right was remembered, or follows from the rest of the page. The second is measured by models that have not trained
on the document: the model before the first round, or shadow runs; and by documents that were not trained on.
"""

from __future__ import annotations

import math
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy.stats import binom

from simfl.audit.membership import default_others, other_rows, trained_names
from simfl.audit.scoring import Target
from simfl.audit.statistics import CONFIDENCE, Estimate, rate
from simfl.audit.tables import with_column
from simfl.data.base import TRAIN, Split
from simfl.errors import ConfigError, nearest
from simfl.protocol import Examples
from simfl.runs.results import Run
from simfl.seeds import rng

WHITE = 255
MAX_FIELDS = 200


@dataclass(frozen=True)
class ExtractionSettings:
    """Settings of an extraction.

    Attributes:
        others: Split of documents that were not trained on; None: `train`, if the partition leaves documents of it
            out, else the first of `unseen`, `test` and `valid`.
        shadows: Shadow runs.
        limit: Fields of each kind of documents, at most.
        seed: Seed of their choice.
    """

    others: str | None = None
    shadows: Sequence[Run] = ()
    limit: int = MAX_FIELDS
    seed: int = 0


@dataclass(frozen=True)
class FieldRates:
    """Shares of erased fields that are answered rightly.

    Attributes:
        name: Documents and model.
        fields: Number of fields.
        extracted: Share that is right.
    """

    name: str
    fields: int
    extracted: Estimate


@dataclass(frozen=True)
class ExtractionResult:
    """The extraction from a run.

    Attributes:
        rates: Shares of right answers, by documents and model.
        baseline: The model without the documents that the run is compared with.
        gained: Fields of trained documents that the run's model answers and the baseline does not.
        lost: Fields that the baseline answers and the run's model does not.
        p: Probability of so many gained ones if both models were equally good (exact one-sided sign test).
    """

    rates: tuple[FieldRates, ...]
    baseline: str
    gained: int
    lost: int
    p: float

    @property
    def leaks(self) -> bool:
        """True if the run's model answers more fields than the baseline, with 95 % confidence."""
        return self.p < 1 - CONFIDENCE


def extract(
    run: Run, settings: ExtractionSettings, report: Callable[[str], None] = lambda text: None
) -> ExtractionResult:
    """Ask the final model of a run for erased fields.

    Raises:
        ConfigError: The data have no questions about pages, no such split, or no field that can be erased.
        RunError: A run has no checkpoint, or a shadow run trains another model.
    """
    target = Target.of(run)
    splits = run.context.dataset.splits
    others = settings.others or default_others(run, "document")
    if others not in splits:
        raise ConfigError(f"--others: the data have no split {others!r}; {nearest(others, splits)}")
    inside = _chosen(splits[TRAIN], run.partition.order, settings, TRAIN)
    outside = _chosen(splits[others], other_rows(run, others), settings, others)
    report(f"asking for {len(inside)} fields of trained documents and {len(outside)} of others")
    found = {
        "trained documents": target.scores(inside.split, inside.encoded(target)),
        f"other documents ({others})": target.scores(outside.split, outside.encoded(target)),
    }
    start = replace(target, weights=target.initial).scores(inside.split, inside.encoded(target))
    found["trained documents, initial model"] = start
    baseline, base, known = "initial model", start, np.ones(len(inside), bool)
    if settings.shadows:
        report(f"asking {len(settings.shadows)} shadow runs")
        base, known = _shadow_scores(target, inside, settings.shadows)
        baseline = "shadow runs"
        found["trained documents, shadow runs"] = base[known]
        if not known.any():
            raise ConfigError("--shadow: the shadow runs have trained on all documents that are asked for")
    right, before = found["trained documents"][known] > 0.5, base[known] > 0.5
    gained, lost = int((right & ~before).sum()), int((before & ~right).sum())
    rates = tuple(FieldRates(name, len(one), rate(int((one > 0.5).sum()), len(one))) for name, one in found.items())
    p = float(binom.sf(gained - 1, gained + lost, 0.5)) if gained + lost else 1.0
    return ExtractionResult(rates, baseline, gained, lost, p)


@dataclass(frozen=True)
class ErasedFields:
    """Questions about pages from which their answers are erased, with a page for each.

    Attributes:
        split: The questions and their pages.
        documents: Name of the page of each question.
        erased: Boxes that are erased from each page, shares of the page.
    """

    split: Split
    documents: tuple[str, ...]
    erased: tuple[np.ndarray, ...]

    def __len__(self) -> int:
        return len(self.documents)

    def encoded(self, target: Target) -> Examples:
        """Return the questions as the objective encodes them, with white boxes in the images."""
        encoded = target.encode(self.split)
        if "pixel_values" in encoded.shared:
            _, images = encoded.shared["pixel_values"]
            for image, boxes in zip(images, self.erased, strict=True):
                _paint(image, boxes)
        return encoded


def _paint(image: torch.Tensor, boxes: np.ndarray) -> None:
    """Paint boxes [n, 4] of an image [3, H, W] white, in place."""
    height, width = image.shape[1:]
    for left, top, right, bottom in boxes.tolist():
        rows = slice(max(0, math.floor(top * height)), max(0, math.ceil(bottom * height)))
        columns = slice(max(0, math.floor(left * width)), max(0, math.ceil(right * width)))
        image[:, rows, columns] = WHITE


def _chosen(data: Split, rows: np.ndarray, settings: ExtractionSettings, name: str) -> ErasedFields:
    """Return erased fields of some rows of a split, at most as many as asked for.

    Raises:
        ConfigError: The data have no questions about pages, or no answer is on its page.
    """
    if data.documents is None or not {"question", "answers"} <= set(data.examples.column_names):
        raise ConfigError("extraction: needs questions about pages with words")
    examples, documents = data.examples, data.documents
    pages, answers = examples["document"].to_pylist(), examples["answers"].to_pylist()
    words, boxes = documents["words"].to_pylist(), documents["boxes"].to_pylist()
    kept: list[int] = []
    hidden: list[np.ndarray] = []
    for row in rng(settings.seed, "extraction", name).permutation(np.sort(rows)).tolist():
        where = answer_words(words[pages[row]], answers[row])
        if where.any() and not where.all():
            kept.append(row)
            hidden.append(where)
        if len(kept) == settings.limit:
            break
    if not kept:
        raise ConfigError(f"extraction: no answer of the split {name} is on its page")
    erased = [np.array(boxes[pages[row]]).reshape(-1, 4) for row in kept]
    taken = documents.take([pages[row] for row in kept])
    texts = [
        [w for w, gone in zip(words[pages[row]], where, strict=True) if not gone]
        for row, where in zip(kept, hidden, strict=True)
    ]
    flat = [own[~where].reshape(-1).tolist() for own, where in zip(erased, hidden, strict=True)]
    taken = with_column(with_column(taken, "words", texts), "boxes", flat)
    asked = with_column(examples.take(kept), "document", list(range(len(kept))))
    names = tuple(str(documents["id"][pages[row]].as_py()) for row in kept)
    gone = tuple(own[where] for own, where in zip(erased, hidden, strict=True))
    return ErasedFields(Split(asked, taken), names, gone)


def answer_words(words: Sequence[str], answers: Sequence[str]) -> np.ndarray:
    """Return which words of a page spell one of the answers, bool [n], without case and outer punctuation."""
    plain = [_plain(word) for word in words]
    found = np.zeros(len(words), bool)
    for answer in answers:
        wanted = [word for word in map(_plain, answer.split()) if word]
        for first in range(len(words) - len(wanted) + 1 if wanted else 0):
            if plain[first : first + len(wanted)] == wanted:
                found[first : first + len(wanted)] = True
    return found


def _plain(word: str) -> str:
    return word.strip(string.punctuation + string.whitespace).lower()


def _shadow_scores(target: Target, fields: ErasedFields, shadows: Sequence[Run]) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean score over the shadow runs without a document, and whether there is one, both [n]."""
    sums, counts = np.zeros(len(fields)), np.zeros(len(fields))
    for shadow in shadows:
        trained = trained_names(shadow, "document")
        outside = np.array([name not in trained for name in fields.documents])
        model = target.with_weights_of(shadow)
        sums += outside * model.scores(fields.split, fields.encoded(target))
        counts += outside
    return sums / np.maximum(counts, 1), counts > 0
