"""The base of all data sets: splits as Arrow tables, and a component that reads or builds them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

DATA_SHA256 = b"simfl.data_sha256"  # key of the examples' schema metadata: the hash of the whole data set

QUESTIONS = pa.schema(
    [
        ("id", pa.string()),
        ("document", pa.int32()),  # row in the documents of the same split
        ("question", pa.string()),
        ("answers", pa.list_(pa.string())),  # the first is the one printed; all are right
        ("field", pa.string()),  # kind of question: total, date, ...
    ]
)

DOCUMENTS = pa.schema(
    [
        ("id", pa.string()),
        ("provider", pa.string()),  # who issued the page
        ("words", pa.list_(pa.string())),  # as read by OCR, in reading order
        ("boxes", pa.list_(pa.float32())),  # 4 a word, flat: left, top, right, bottom in [0, 1]
        ("image", pa.binary()),  # encoded PNG or JPEG
        ("width", pa.int32()),  # of the image, in pixels
        ("height", pa.int32()),
    ]
)

PICTURES = pa.schema(
    [
        ("id", pa.string()),
        ("image", pa.binary()),  # encoded PNG or JPEG
        ("width", pa.int32()),  # of the image, in pixels
        ("height", pa.int32()),
        ("label", pa.int32()),  # number of the class, from 0
        ("class", pa.string()),  # its name
        ("domain", pa.string()),  # where such pictures come from: photo, sketch, ...
    ]
)

WORD_PICTURES = pa.schema(
    [
        ("id", pa.string()),
        ("image", pa.binary()),  # encoded PNG or JPEG of one word, as its source has it
        ("width", pa.int32()),  # of the image, in pixels
        ("height", pa.int32()),
        ("text", pa.string()),  # what stands there, in the case the source gives
        ("source", pa.string()),  # which of the sets it comes from
    ]
)


@dataclass(frozen=True)
class Split:
    """One split of a data set.

    Question answering: `examples` has the columns of `QUESTIONS`, `documents` those of `DOCUMENTS`; further columns may
    follow. Pictures with a class: `examples` has the columns of `PICTURES`, or `features` (fixed-size list of float32)
    in place of `image`, and columns to group by. Word recognition: `WORD_PICTURES`. `documents` is None for both.
    """

    examples: pa.Table
    documents: pa.Table | None = None

    def __len__(self) -> int:
        return self.examples.num_rows

    def of(self, sha256: str) -> Split:
        """The same split, its examples telling the hash of the data set that it belongs to."""
        told = {**(self.examples.schema.metadata or {}), DATA_SHA256: sha256.encode()}
        return Split(self.examples.replace_schema_metadata(told), self.documents)


@dataclass(frozen=True)
class Dataset:
    """All splits of a data set, and what is known of it."""

    name: str
    splits: dict[str, Split]  # train, valid, test, and others such as unseen
    sha256: str  # of the content: questions, answers, words, labels
    card: Mapping[str, object] = field(default_factory=dict)  # licence, sources, counts, rows dropped and why
    folder: Path | None = None  # where it is kept on this machine; None: in memory alone


@dataclass(frozen=True)
class Published:
    """What is known of a data set before it is read: its training examples, so that a run can be planned without it."""

    examples: int  # in all
    clients: tuple[int, ...] = ()  # of each official client
    groups: tuple[int, ...] = ()  # named groups (providers) of each official client
    by: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # column -> its value -> examples
    documents: Mapping[str, int] = field(default_factory=dict)  # value of the column `dataset` -> documents
    num_classes: int | None = None  # where pictures have classes
    shape: tuple[int, ...] | None = None  # of one example's features or pixels


@dataclass(frozen=True)
class Data(ABC):
    """A data set as a component: its fields are its settings."""

    QUESTIONS: ClassVar[Mapping[str, Any]] = {}  # as published, by split

    @abstractmethod
    def load(self, cache: Path) -> Dataset:
        """Read the data set, or build it and keep what was built under `cache`. Raises DataError with one line."""

    def published(self) -> Published | None:
        """What its authors say that it holds; None for data that have to be looked at."""
        count = self.QUESTIONS.get("train")
        return Published(count) if isinstance(count, int) else None
