"""Words, boxes and images of documents, as objectives of documents read them.

`simfl.data.soundness` checks data sets before a run; a split that comes from elsewhere is refused here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from simfl.errors import DataError
from simfl.objectives.images import decode_images, document_images

EDGE = 0.01  # share of the page by which a box may reach over its edge


@dataclass(frozen=True)
class PageWords:
    """The words of all documents of a split, document by document.

    Attributes:
        texts: Distinct words, in the case that the data give.
        kinds: Index of each word among `texts`, int64 [T].
        boxes: Left, top, right, bottom of each word as shares of the page, float64 [T, 4].
        bounds: Index of each document's first word, int64 [documents + 1].
    """

    texts: list[str]
    kinds: np.ndarray
    boxes: np.ndarray
    bounds: np.ndarray


def read_words(documents: Any, objective: str) -> PageWords:
    """Return the words and boxes of a table of documents.

    Raises:
        DataError: A document has another number of boxes than of words, or a word or box that is none.
    """
    words, boxes = (documents[name].combine_chunks() for name in ("words", "boxes"))
    lengths = (column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False) for column in (words, boxes))
    num_words, num_numbers = (found.astype(np.int64) for found in lengths)
    for row in np.flatnonzero(num_numbers != 4 * num_words)[:1].tolist():
        name = _name(documents, row)
        raise DataError(f"{objective}: {name}: {num_words[row]} words have {num_numbers[row] / 4:g} boxes")
    bounds = np.concatenate([[0], np.cumsum(num_words)]).astype(np.int64)
    flat = words.flatten().dictionary_encode()
    numbers = boxes.flatten().to_numpy(zero_copy_only=False).astype(np.float64).reshape(-1, 4)
    with np.errstate(invalid="ignore"):
        inside = ((numbers >= -EDGE) & (numbers <= 1 + EDGE)).all(1)  # false for NaN, which null is too
        wrong = ~(inside & (numbers[:, 2:] >= numbers[:, :2]).all(1))
    if flat.null_count or wrong.any():
        null = ~flat.is_valid().to_numpy(zero_copy_only=False)
        word = int(np.flatnonzero(null | wrong)[0])
        row = int(np.searchsorted(bounds, word, side="right")) - 1
        given = ", ".join(f"{value:.4g}" for value in numbers[word])
        problem = "is null" if null[word] else f"has the box [{given}], expected left, top, right, bottom in [0, 1]"
        raise DataError(f"{objective}: {_name(documents, row)}: word {word - bounds[row]} {problem}")
    kinds = flat.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return PageWords(flat.dictionary.to_pylist(), kinds, numbers, bounds)


def page_images(documents: Any, size: int) -> Tensor:
    """Return the documents' images, uint8 [documents, 3, size, size]. Raises DataError without images."""
    names = [f"document {name}" for name in documents["id"].to_pylist()]
    return decode_images(document_images(documents), "RGB", (size, size), names)


def example_documents(examples: Any, documents: Any, objective: str) -> np.ndarray:
    """Return the document of each example, int64 [N]. Raises DataError for one that does not exist."""
    column = examples["document"]
    rows: np.ndarray = column.fill_null(-1).to_numpy().astype(np.int64)
    for row in np.flatnonzero((rows < 0) | (rows >= documents.num_rows))[:1].tolist():
        given = column[row].as_py()
        raise DataError(f"{objective}: row {row}: document {given}, but there are {documents.num_rows} documents")
    return rows


def _name(documents: Any, row: int) -> str:
    return f"document {documents['id'][row].as_py()!r}" if "id" in documents.column_names else f"document {row}"
