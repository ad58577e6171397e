"""Splits while their files are read: questions and pages as columns that become Arrow every few thousand rows.

A page is kept once however many questions are asked of it. Pictures are squeezed by several threads while the files are
read on, so neither words nor pictures of a large set ever lie in Python objects as a whole.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from simfl.data.base import DOCUMENTS, QUESTIONS, Data, Dataset, Split
from simfl.data.io.arrow_store import content_sha256, stored
from simfl.data.io.images import shrink, size_of, truncated_files
from simfl.errors import DataError

CHUNK = 4096  # rows
Fields = Sequence[tuple[str, pa.DataType]]
PATHS = pa.schema([pa.field("image_path", pa.string()) if f.name == "image" else f for f in DOCUMENTS])
Missing = Literal["refuse", "drop"]


class Columns:
    """Rows of a table, given one by one."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema, self._done, self._rows = schema, list[pa.RecordBatch](), 0
        self._open: dict[str, list[Any]] = {name: [] for name in schema.names}

    def __len__(self) -> int:
        return self._rows

    def add(self, **values: Any) -> None:
        """One row; a column that is not named is null."""
        for name, column in self._open.items():
            column.append(values.pop(name, None))
        assert not values, f"no columns {sorted(values)}"
        self._rows += 1
        if self._rows % CHUNK == 0:
            self._flush()

    def table(self) -> pa.Table:
        """All rows so far, as one chunk a column."""
        self._flush()
        return pa.Table.from_batches(self._done, self.schema).combine_chunks()

    def _flush(self) -> None:
        settled = {name: [_settled(v) for v in column] for name, column in self._open.items()}
        self._done.append(pa.record_batch([pa.array(settled[f.name], f.type) for f in self.schema], schema=self.schema))
        self._open = {name: [] for name in self.schema.names}


def _settled(value: Any) -> Any:
    return value.result() if isinstance(value, Future) else value


@dataclass(frozen=True)
class Pictures:
    """How the pictures of a data set are kept."""

    size: int  # pixels square, squeezed, in colour as JPEG; 0: only the path to each, in the column `image_path`
    missing: Missing = "refuse"  # what becomes of questions on a picture that is not there

    @property
    def described(self) -> str:
        """For the card."""
        return f"colour, squeezed to {self.size}x{self.size}, JPEG" if self.size else "paths; sizes are the files' own"


@dataclass
class Gather:
    """One split of a question answering set."""

    pictures: Pictures  # how they are kept
    need_answers: bool = True  # false: questions without an answer stay, as in withheld test sets
    more: Fields = ()  # columns of the examples beyond those of QUESTIONS
    more_pages: Fields = ()  # columns of the documents beyond those of DOCUMENTS
    dropped: Counter[str] = field(default_factory=Counter)  # questions left out, by reason
    noted: Counter[str] = field(default_factory=Counter)  # what was odd and is kept

    def __post_init__(self) -> None:
        self._examples = Columns(pa.schema([*QUESTIONS, *self.more]))
        self._pages = Columns(pa.schema([*(DOCUMENTS if self.pictures.size else PATHS), *self.more_pages]))
        self._row_of: dict[str, int] = {}
        self._absent: set[str] = set()
        self._ids: Counter[str] = Counter()
        self._threads = ThreadPoolExecutor(os.cpu_count())

    def known(self, key: str) -> int | None:
        """The row of a page that was added before."""
        return self._row_of.get(key)

    def page(
        self,
        where: str,
        key: str,
        picture: Path | bytes | Callable[[], bytes] | None,
        words: Sequence[str] = (),
        boxes: Sequence[float] | np.ndarray = (),
        provider: str = "",
        **more: Any,
    ) -> int | None:
        """The row of a page, added if it is new; None where its picture is not there and such pages are dropped.

        `picture` is a file, or a JPEG or PNG of the size asked for, or what draws one. `boxes` has four numbers a
        word in [0, 1].
        """
        if key in self._row_of or key in self._absent:
            return self._row_of.get(key)
        if isinstance(picture, Path) and not picture.is_file():
            if self.pictures.missing == "refuse":
                raise DataError(f"{where}: the picture {picture} is not there")
            self._absent.add(key)
            return None
        if len(boxes) != 4 * len(words):
            raise DataError(f"{where}: {len(words)} words have {len(boxes) / 4:g} boxes")
        given = {"id": key, "provider": provider, "words": list(words), "boxes": boxes, **self._picture(picture)}
        self._pages.add(**given, **more)
        self._row_of[key] = len(self._row_of)
        return self._row_of[key]

    def _picture(self, picture: Path | bytes | Callable[[], bytes] | None) -> dict[str, Any]:
        size = self.pictures.size
        if size:
            drawn = _squeeze(picture, size) if isinstance(picture, Path) else picture
            image = self._threads.submit(drawn) if callable(drawn) else drawn
            return {"image": image, "width": size, "height": size}
        if isinstance(picture, Path):
            width, height = size_of(picture)
            return {"image_path": str(picture), "width": width, "height": height}
        return {"image_path": None, "width": 0, "height": 0}

    def ask(
        self, id: str, page: int | None, question: str, answers: Sequence[str], field: str = "", **more: Any
    ) -> bool:
        """Adds a question unless it has no answer or no picture; true if it was added.

        An id that is taken already is made unique by a number, and noted.
        """
        right = [answer for answer in answers if answer.strip()]
        reason = "picture missing" if page is None else "no answer" if self.need_answers and not right else ""
        if reason:
            self.dropped[reason] += 1
            return False
        self._examples.add(id=self._unique(id), document=page, question=question, answers=right, field=field, **more)
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

    def split(self) -> Split:
        """The split as tables. DataError if a picture cannot be read."""
        with self._threads:
            return Split(self._examples.table(), self._pages.table())


def _squeeze(path: Path, size: int) -> Callable[[], bytes]:
    return lambda: shrink(path, size, "RGB", "JPEG")


def kept(
    cache: Path, name: str, edition: int, data: Data, sources: Iterable[Path], build: Callable[[], Dataset]
) -> Dataset:
    """As `stored`; while it is built, pictures that end too early are refused."""
    with truncated_files(read=False):
        return stored(cache, name, edition, data, sources, build)


def finish(name: str, gathered: Mapping[str, Gather], card: Mapping[str, Any], also: str = "") -> Dataset:
    """The data set of these splits. Its hash is of questions and pages, not of pictures and where they lie."""
    splits = {part: split for part, gather in gathered.items() if len(split := gather.split())}
    pictures = next(iter(gathered.values())).pictures
    digest = content_sha256(splits, also=f"{also} {pictures.size}", exclude=("image", "image_path"))
    counts = {
        "questions": {part: len(split) for part, split in splits.items()},
        "pages": {part: split.documents.num_rows for part, split in splits.items() if split.documents is not None},
        "dropped": {part: dict(gather.dropped) for part, gather in gathered.items()},
        "noted": {part: dict(gather.noted) for part, gather in gathered.items()},
    }
    return Dataset(name, splits, digest, {**card, **counts, "image": pictures.described})
