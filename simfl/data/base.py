"""Base classes of data sets: splits as Arrow tables, and the component that reads or builds them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc

TRAIN = "train"  # the split that is divided among clients
HELD_OUT = "heldout"  # name by which the held-out examples of clients are evaluated like a split
DATA_SHA256 = b"simfl.data_sha256"  # schema metadata key of the examples: the hash of the whole data set
CLASSES = b"simfl.classes"  # schema metadata key of the examples: names of the classes of text labels, a JSON list

SPLIT_NAMES = {  # other names of simfl's splits, in files, folders and mappings
    "training": "train",
    "val": "valid",
    "validation": "valid",
    "dev": "valid",
    "eval": "valid",
    "testing": "test",
}

QUESTIONS = pa.schema(
    [
        ("id", pa.string()),
        ("document", pa.int32()),  # row in the documents of the same split
        ("question", pa.string()),
        ("answers", pa.list_(pa.string())),  # all are correct; the first is the training target
        ("field", pa.string()),  # kind of question: total, date, ...
    ]
)

DOCUMENTS = pa.schema(
    [
        ("id", pa.string()),
        ("provider", pa.string()),  # publisher of the page
        ("words", pa.list_(pa.string())),  # as read by OCR, in reading order
        ("boxes", pa.list_(pa.float32())),  # 4 a word, flat: left, top, right, bottom in [0, 1]
        ("image", pa.binary()),  # encoded PNG or JPEG
        ("width", pa.int32()),  # of the image, in pixels
        ("height", pa.int32()),
    ]
)

IMAGES = pa.schema(
    [
        ("id", pa.string()),
        ("image", pa.binary()),  # encoded PNG or JPEG
        ("width", pa.int32()),  # of the image, in pixels
        ("height", pa.int32()),
        ("label", pa.int32()),  # class, counted from 0
        ("class", pa.string()),  # name of the class
        ("domain", pa.string()),  # kind of image: photo, sketch, ...
    ]
)

WORD_IMAGES = pa.schema(
    [
        ("id", pa.string()),
        ("image", pa.binary()),  # encoded PNG or JPEG of one word, as in its source
        ("width", pa.int32()),  # of the image, in pixels
        ("height", pa.int32()),
        ("text", pa.string()),  # the word, in the case the source gives
        ("source", pa.string()),  # name of the source data set
    ]
)


def split_name(name: str) -> str:
    """Return simfl's name of a split: `valid` for `validation`; any other name is unchanged."""
    return SPLIT_NAMES.get(name.lower(), name)


@dataclass(frozen=True)
class Split:
    """One split of a data set.

    Question answering: `examples` has the columns of `QUESTIONS` and `documents` those of `DOCUMENTS`, both possibly
    with further columns. Image classification: `examples` has the columns of `IMAGES`, or `features` (fixed-size list
    of float32) in place of `image`, and columns to group by. Word recognition: `examples` has the columns of
    `WORD_IMAGES`. `documents` is None for the last two.
    """

    examples: pa.Table
    documents: pa.Table | None = None

    def __len__(self) -> int:
        return self.examples.num_rows

    def first(self, count: int) -> Split:
        """Return the first examples, with their documents alone."""
        examples = self.examples.slice(0, count)
        if self.documents is None or "document" not in examples.column_names:
            return Split(_without_sha256(examples), self.documents)
        used = pc.unique(examples["document"])
        position = examples.column_names.index("document")
        kept = pc.index_in(examples["document"], used).cast(examples.schema.field(position).type)
        examples = examples.set_column(position, examples.schema.field(position), kept)
        return Split(_without_sha256(examples), self.documents.take(used))

    def with_sha256(self, sha256: str) -> Split:
        """Return the split with the hash of its data set in the metadata of its examples."""
        metadata = {**(self.examples.schema.metadata or {}), DATA_SHA256: sha256.encode()}
        return Split(self.examples.replace_schema_metadata(metadata), self.documents)


def _without_sha256(table: pa.Table) -> pa.Table:
    """Return a part of a table without the hash of the whole."""
    metadata = {key: value for key, value in (table.schema.metadata or {}).items() if key != DATA_SHA256}
    return table.replace_schema_metadata(metadata)


@dataclass(frozen=True)
class Dataset:
    """All splits of a data set, with its hash and its card."""

    name: str
    splits: dict[str, Split]  # train, valid, test, and others such as unseen
    sha256: str  # of the content: questions, answers, words, labels
    card: Mapping[str, object] = field(default_factory=dict)  # licence, sources, counts, dropped examples by reason
    folder: Path | None = None  # cache folder on this machine; None: in memory only


@dataclass(frozen=True)
class Published:
    """Published sizes of a data set's training split, with which a run can be planned before the data are read."""

    examples: int  # total number
    clients: tuple[int, ...] = ()  # examples of each official client
    groups: tuple[int, ...] = ()  # named groups (providers) of each official client
    by: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # column -> value -> number of examples
    documents: Mapping[str, int] = field(default_factory=dict)  # value of the column `dataset` -> number of documents
    num_classes: int | None = None  # None: not a classification data set
    shape: tuple[int, ...] | None = None  # of one example's features or pixels


@dataclass(frozen=True)
class Data(ABC):
    """A data set as a component: its fields are its settings."""

    QUESTIONS: ClassVar[Mapping[str, object]] = {}  # published number of questions of each split
    example: ClassVar[Mapping[str, object]] = {}  # settings for `simfl.contract.check`

    @abstractmethod
    def load(self, cache: Path) -> Dataset:
        """Read the data set from `cache`, or build it and store it there; DataError if it cannot be read."""

    def preview(self, cache: Path) -> Dataset:
        """Read the data set for `simfl data check`, with its faults where `load` refuses them."""
        return self.load(cache)

    def published(self) -> Published | None:
        """Return the published sizes; None if they are only known once the data are read."""
        count = self.QUESTIONS.get("train")
        return Published(count) if isinstance(count, int) else None
