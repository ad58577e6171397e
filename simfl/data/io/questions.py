"""Question answering splits: questions on pages or images, built while their files are read.

A page is stored once, however many questions refer to it. Images are resized by several threads during the reading.
For visual question answering the schema is the same without words, and the column `counts` holds how many annotators
gave each answer, so that every scoring rule can be applied later (ViLT's 0.3, 0.6, 0.9, 1; min(n/3, 1); 1 for the only
answer).
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from simfl.data.base import DOCUMENTS, QUESTIONS, Dataset, Split
from simfl.data.io import records
from simfl.data.io.arrow_store import content_sha256
from simfl.data.io.images import MissingImages, image_size, resize_image
from simfl.data.io.tables import TableBuilder
from simfl.errors import DataError

Columns = Sequence[tuple[str, pa.DataType]]
PageImage = Path | bytes | Callable[[], bytes] | None  # a file, an encoded image, a function that draws one, or none
IMAGE_PATHS = pa.schema([pa.field("image_path", pa.string()) if f.name == "image" else f for f in DOCUMENTS])
ANSWER_COUNTS = ("counts", pa.list_(pa.int32()))  # column: how many annotators gave each of the answers


@dataclass(frozen=True)
class ImageStorage:
    """Storage of the images of a data set."""

    size: int  # pixels of each side, in colour as JPEG; 0: only the path of each file, in the column `image_path`
    missing: MissingImages = "refuse"  # drop: questions on missing images are counted and left out

    @property
    def label(self) -> str:
        """Description for the data set's card."""
        return f"colour, resized to {self.size}x{self.size}, JPEG" if self.size else "paths; sizes are the files' own"


@dataclass
class QuestionSplitBuilder:
    """Builder of one split of a question answering data set."""

    images: ImageStorage
    need_answers: bool = True  # false: keep questions without an answer, as in test sets with withheld answers
    example_columns: Columns = ()  # columns of the examples after those of QUESTIONS
    document_columns: Columns = ()  # columns of the documents after those of DOCUMENTS
    dropped: Counter[str] = field(default_factory=Counter)  # questions left out, by reason
    noted: Counter[str] = field(default_factory=Counter)  # oddities that were kept, by kind

    def __post_init__(self) -> None:
        documents = DOCUMENTS if self.images.size else IMAGE_PATHS
        self._examples = TableBuilder(pa.schema([*QUESTIONS, *self.example_columns]))
        self._documents = TableBuilder(pa.schema([*documents, *self.document_columns]))
        self._row_of: dict[str, int] = {}
        self._content: dict[str, int] = {}  # hash of the words and boxes of each page
        self._missing: set[str] = set()
        self._ids: Counter[str] = Counter()
        self._threads = ThreadPoolExecutor(os.cpu_count())

    def page_row(self, id: str) -> int | None:
        """Return the row of a page that was added before, or None."""
        return self._row_of.get(id)

    def has_other_words(self, id: str, words: Sequence[str], boxes: Sequence[float] | np.ndarray) -> bool:
        """Return whether a page was added before with other words or boxes."""
        return id in self._content and self._content[id] != _content(words, boxes)

    def add_page(
        self,
        where: str,
        id: str,
        image: PageImage,
        words: Sequence[str] = (),
        boxes: Sequence[float] | np.ndarray = (),
        provider: str = "",
        **columns: object,
    ) -> int | None:
        """Add a page unless it exists, and return its row; None if its image is missing and such pages are dropped.

        Args:
            where: File and row, for error messages.
            id: Name of the page, unique in the split.
            image: A file, an image encoded at the stored size, or a function that returns one.
            words: The words in reading order.
            boxes: Four numbers a word in [0, 1], flat: left, top, right, bottom.
            provider: The publisher of the page; empty if unknown.
            **columns: Values of `document_columns`.

        Raises:
            DataError: the image is missing and not dropped, or words and boxes do not match.
        """
        if id in self._row_of or id in self._missing:
            if len(words) and self.has_other_words(id, words, boxes):
                self.noted["other words of a known page"] += 1
            return self._row_of.get(id)
        if isinstance(image, Path) and not image.is_file():
            if self.images.missing == "refuse":
                raise DataError(f"{where}: the image {image} is missing")
            self._missing.add(id)
            return None
        if len(boxes) != 4 * len(words):
            raise DataError(f"{where}: {len(words)} words have {len(boxes) / 4:g} boxes")
        page = {"id": id, "provider": provider, "words": list(words), "boxes": boxes}
        self._documents.add(**page, **self._image_columns(image), **columns)
        self._row_of[id], self._content[id] = len(self._row_of), _content(words, boxes)
        return self._row_of[id]

    def _image_columns(self, image: PageImage) -> dict[str, object]:
        size = self.images.size
        if size:
            encode = _resizer(image, size) if isinstance(image, Path) else image
            encoded = self._threads.submit(encode) if callable(encode) else encode
            return {"image": encoded, "width": size, "height": size}
        if isinstance(image, Path):
            width, height = image_size(image)
            return {"image_path": str(image), "width": width, "height": height}
        return {"image_path": None, "width": 0, "height": 0}

    def add_question(
        self, id: str, page: int | None, question: str, answers: Sequence[str], field: str = "", **columns: object
    ) -> bool:
        """Add a question unless it has no answer or no page; return True if it was added.

        A duplicate id is made unique by a number, and noted.
        """
        answers = [answer for answer in answers if answer.strip()]
        reason = "image missing" if page is None else "no answer" if self.need_answers and not answers else ""
        if reason:
            self.dropped[reason] += 1
            return False
        row = {"id": self._unique(id), "document": page, "question": question, "answers": answers, "field": field}
        self._examples.add(**row, **columns)
        return True

    def _unique(self, id: str) -> str:
        if id in self._ids:
            self.noted["duplicate id"] += 1
        unique = id
        while unique in self._ids:
            self._ids[id] += 1
            unique = f"{id}#{self._ids[id]}"
        self._ids[unique] = 1
        return unique

    def build(self) -> Split:
        """Return the split as tables; DataError if an image cannot be read."""
        with self._threads:
            return Split(self._examples.table(), self._documents.table())


def _content(words: Sequence[str], boxes: Sequence[float] | np.ndarray) -> int:
    """Return a hash of the words and boxes of a page, which holds in this process."""
    return hash((tuple(words), np.asarray(boxes, np.float32).tobytes()))


def _resizer(path: Path, size: int) -> Callable[[], bytes]:
    return lambda: resize_image(path, size, "RGB", "JPEG")


def build_question_dataset(
    name: str, builders: Mapping[str, QuestionSplitBuilder], card: Mapping[str, object], also: str = ""
) -> Dataset:
    """Build the data set of these splits, without empty ones. Its hash covers questions and pages but not images."""
    splits = {part: split for part, builder in builders.items() if len(split := builder.build())}
    images = next(iter(builders.values())).images
    digest = content_sha256(splits, also=f"{also} {images.size}", exclude=("image", "image_path"))
    counts = {
        "questions": {part: len(split) for part, split in splits.items()},
        "pages": {part: split.documents.num_rows for part, split in splits.items() if split.documents is not None},
        "dropped": {part: dict(builder.dropped) for part, builder in builders.items()},
        "noted": {part: dict(builder.noted) for part, builder in builders.items()},
    }
    return Dataset(name, splits, digest, {**card, **counts, "image": images.label})


def count_answers(where: str, value: object, field: str = "answers") -> tuple[list[str], list[int]]:
    """Return the distinct answers, most frequent first and ties in the order given, and the count of each.

    Args:
        where: File and row, for error messages.
        value: A list of texts or of mappings with `answer`; None, for withheld answers, returns empty lists.
        field: Name of the field, for error messages.
    """
    if value is None:
        return [], []
    answers: list[str] = []
    for number, entry in enumerate(records.as_list(where, value, field)):
        answer = entry.get("answer") if isinstance(entry, dict) else entry
        if not isinstance(answer, str):
            raise DataError(f"{where}: {field} {number} is {answer!r}, expected text")
        answers.append(answer)
    ranked = Counter(answer.strip() for answer in answers if answer.strip()).most_common()
    return [answer for answer, _ in ranked], [count for _, count in ranked]


def find_image(root: Path, name: str, *folders: str) -> Path:
    """Return the image in the first of these folders that has it, or its expected path in the first folder."""
    return records.find(root, *(f"{folder}/{name}" for folder in folders)) or root / folders[0] / name
