"""Faults of the words and boxes of documents.

A box is refused where the model would see another place than the page has: it belongs to another word, is missing or
not a number, is in pixels, lies outside of the page, or has its corners the wrong way round.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from simfl.data.arrays import filled, list_lengths, null_mask, to_numpy
from simfl.data.faults import Fault, SplitTable, shown

EDGE = 0.01  # share of the page by which a box may reach over its edge: OCR rounds, and the rest is cut
PIXELS = 2.0  # boxes beyond this cannot be shares of a page


@dataclass
class _Found:
    """A kind of fault while the documents are read."""

    count: int = 0
    row: int = 0
    problem: str = ""

    def add(self, count: int, row: int, problem: str) -> None:
        """Count more faults of this kind; the first one is described."""
        if not self.count:
            self.row, self.problem = row, problem
        self.count += count


@dataclass
class _PageReader:
    """The faults of documents that are read batch by batch, so that few of them are in memory."""

    found: dict[tuple[str, str], _Found] = field(default_factory=dict)  # by kind and column

    def read(self, first: int, words: pa.Array, boxes: pa.Array | None) -> None:
        """Read some documents, of which the first has the row `first`."""
        counts = list_lengths(words)
        ends = np.cumsum(counts)
        self._read_words(first, words.flatten(), ends)
        if boxes is None:
            return
        numbers = list_lengths(boxes)
        uneven = np.flatnonzero(numbers != 4 * counts)
        if len(uneven):
            row = int(uneven[0])
            problem = f"{counts[row]} words have {numbers[row] / 4:g} boxes; expected 4 numbers for each word"
            self._add("documents whose words and boxes do not match", "boxes", len(uneven), first + row, problem)
            return
        self._read_boxes(first, boxes.flatten(), words.flatten(), ends)

    def _read_words(self, first: int, words: pa.Array, ends: np.ndarray) -> None:
        if words.null_count:
            null = np.flatnonzero(null_mask(words))
            row, word = _locate(int(null[0]), ends)
            self._add("words that are null", "words", len(null), first + row, f"word {word} is null, expected text")

    def _read_boxes(self, first: int, flat: pa.Array, words: pa.Array, ends: np.ndarray) -> None:
        values = to_numpy(filled(flat, float("nan"))).reshape(-1, 4)
        for kind, wrong, expected in _wrong_boxes(values):
            rows = np.flatnonzero(wrong)
            at = int(rows[0])
            row, word = _locate(at, ends)
            given = flat.slice(4 * at, 4).to_pylist()
            problem = _describe(word, words[at].as_py(), given, expected)
            self._add(kind, "boxes", len(rows), first + row, problem)

    def _add(self, kind: str, column: str, count: int, row: int, problem: str) -> None:
        self.found.setdefault((kind, column), _Found()).add(count, row, problem)


def page_faults(table: SplitTable) -> Iterator[Fault]:
    """Yield the faults of the words and boxes of a table of documents, one for each kind."""
    reader, first = _PageReader(), 0
    if table.has("words"):
        columns = table.data.select([name for name in ("words", "boxes") if table.has(name)])
        for batch in columns.to_batches():
            reader.read(first, batch.column(0), batch.column(1) if batch.num_columns > 1 else None)
            first += batch.num_rows
    for (kind, column), found in reader.found.items():
        yield table.fault(kind, found.count, found.row, column, found.problem)


def box_problem(boxes: np.ndarray, words: Sequence[str]) -> str | None:
    """Return the problem of the first word of a page whose box is wrong, or None; `boxes` has 4 numbers for each."""
    values = boxes.reshape(-1, 4)
    for _, wrong, expected in _wrong_boxes(values):
        word = int(np.flatnonzero(wrong)[0])
        return _describe(word, words[word], values[word].tolist(), expected)
    return None


def _wrong_boxes(values: np.ndarray) -> Iterator[tuple[str, np.ndarray, str]]:
    """Yield each kind of fault that boxes [n, 4] have, which boxes have it, and what is expected."""
    with np.errstate(invalid="ignore"):  # the extremes of NaN are NaN, which is in no range
        within = len(values) == 0 or (values.min() >= -EDGE and values.max() <= 1 + EDGE)
    if within and (values[:, 0] <= values[:, 2]).all() and (values[:, 1] <= values[:, 3]).all():
        return  # the usual case, at a third of the time
    with np.errstate(invalid="ignore"):
        numbers = np.isfinite(values).all(1)
        inside = ((values >= -EDGE) & (values <= 1 + EDGE)).all(1)
        ordered = (values[:, 2:] >= values[:, :2]).all(1)
    kinds = (
        ("boxes that are not numbers", ~numbers, "expected 4 finite numbers"),
        ("boxes outside of the page", numbers & ~inside, "expected left, top, right, bottom as shares of the page"),
        ("boxes that are inverted", numbers & inside & ~ordered, "expected left, top, right, bottom in this order"),
    )
    yield from (one for one in kinds if one[1].any())


def _describe(number: int, word: object, box: Sequence[float | None], expected: str) -> str:
    """Describe the box of a word of a page."""
    given = ", ".join("null" if value is None else f"{value:.4g}" for value in box)
    in_pixels = any(value is not None and np.isfinite(value) and abs(value) > PIXELS for value in box)
    hint = "; they look like pixels, divide them by the page's width and height" if in_pixels else ""
    return f"word {number} ({shown(word)}) has the box [{given}], {expected}{hint}"


def _locate(index: int, ends: np.ndarray) -> tuple[int, int]:
    """Return the document and the word's number in it, both from 0, of a word among all words."""
    row = int(np.searchsorted(ends, index, side="right"))
    return row, index - (int(ends[row - 1]) if row else 0)
