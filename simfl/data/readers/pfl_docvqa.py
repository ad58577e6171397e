"""PFL-DocVQA: questions on invoices of some 400 providers for each of ten clients.

Tito et al. 2024 (Privacy-aware document visual question answering) and the report of the NeurIPS 2023 competition.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa

from simfl.data.base import DOCUMENTS, QUESTIONS, Data, Dataset, Published, Split
from simfl.data.io.arrow_store import content_sha256, stored
from simfl.data.io.images import shrink, truncated_files
from simfl.data.readers import pfl_format as pfl_files
from simfl.data.readers.pfl_format import Record
from simfl.errors import DataError

EDITION = 2


class Size(NamedTuple):
    """How much a client or a split holds, as published."""

    providers: int
    documents: int
    pages: int
    questions: int


@dataclass(frozen=True)
class PflDocvqa(Data):
    """Invoices of the PFL-DocVQA competition in their official layout, ten official clients.

    Training examples have the column `client`; examples have `set_name`, pages `document`. Test questions on providers
    that nobody trained on (set names ending in `negative`) are the split `unseen`. Providers that the release does not
    tell are the empty text.
    """

    path: str  # a folder with imdb/ and images/; ~ and $VARIABLES are followed
    image_size: int = 224  # pages are stored in colour, squeezed to this many pixels square; 0: paths only

    CLIENTS: ClassVar[tuple[Size, ...]] = (
        Size(400, 2224, 5930, 19465),
        Size(418, 2382, 6694, 22229),
        Size(404, 2296, 6667, 21673),
        Size(414, 2358, 6751, 22148),
        Size(429, 4543, 12071, 32472),
        Size(423, 2378, 6984, 22361),
        Size(423, 2700, 7406, 23801),
        Size(416, 1951, 5617, 18462),
        Size(401, 1932, 5421, 17868),
        Size(421, 2136, 6353, 20840),
    )
    SPLITS: ClassVar[dict[str, Size]] = {
        "valid": Size(2231, 3536, 9150, 30491),
        "test": Size(1390, 2875, 8088, 25603),
        "unseen": Size(977, 1912, 5375, 17988),
    }

    def load(self, cache: Path) -> Dataset:
        root = Path(os.path.expandvars(self.path)).expanduser()
        imdb = pfl_files.folder(root)
        sources = sorted(path for path in imdb.iterdir() if path.suffix in (".npy", ".json"))
        return stored(cache, "pfl_docvqa", EDITION, self, sources, lambda: self._build(imdb, root / "images"))

    def published(self) -> Published:
        questions = tuple(size.questions for size in self.CLIENTS)
        return Published(sum(questions), questions, tuple(size.providers for size in self.CLIENTS))

    def _build(self, imdb: Path, images: Path) -> Dataset:
        tables = {"train": _train(imdb), **_whole(imdb)}
        splits = {name: table.split(images, self.image_size) for name, table in tables.items()}
        digest = content_sha256(splits, also=str(self.image_size), exclude=("image", "image_path"))
        card = {
            "licence": "as the competition gives it: research use",
            "clients": [size._asdict() for size in tables["train"].clients()],
            "splits": {name: table.size()._asdict() for name, table in tables.items()},
            "dropped": {name: dict(table.dropped) for name, table in tables.items()},
            "image": f"colour, squeezed to {self.image_size}x{self.image_size}, JPEG" if self.image_size else "paths",
            "boxes": "as given, cut to [0, 1]",
        }
        return Dataset("pfl_docvqa", splits, digest, card)


@dataclass
class Rows:
    """A split while its files are read: columns of questions and of pages."""

    need_answers: bool
    with_clients: bool = False
    questions: dict[str, list[Any]] = field(default_factory=lambda: _columns(*QUESTIONS.names, "client", "set_name"))
    pages: dict[str, list[Any]] = field(
        default_factory=lambda: _columns("id", "provider", "words", "boxes", "document")
    )
    row_of_page: dict[str, int] = field(default_factory=dict)
    ids: set[str] = field(default_factory=set)
    dropped: Counter[str] = field(default_factory=Counter)

    def add(self, record: Record, provider: str, client: int, spare_id: str) -> None:
        """Adds a question, and its page if it is a new one. `spare_id` is unique over all files of the split."""
        if self.need_answers and not record.answers:
            self.dropped["no answer"] += 1
            return
        page = self._page(record, provider)
        chosen = record.id if record.id is not None and record.id not in self.ids else spare_id
        self.ids.add(chosen)
        values = (chosen, page, record.question, record.answers, "", client, record.set_name)
        for column, value in zip(self.questions.values(), values, strict=True):
            column.append(value)

    def _page(self, record: Record, provider: str) -> int:
        known = self.row_of_page.get(record.page)
        if known is None:
            values = (record.page, provider, record.words, record.boxes(), record.document)
            for column, value in zip(self.pages.values(), values, strict=True):
                column.append(value)
            known = self.row_of_page[record.page] = len(self.row_of_page)
            return known
        if (other := self.pages["provider"][known]) != provider:
            raise DataError(f"{record.where}: page {record.page} is of {provider!r}, elsewhere of {other!r}")
        if self.pages["words"][known] != record.words:
            self.dropped["other words of a known page"] += 1
        return known

    def size(self, client: int | None = None) -> Size:
        """What the split or one of its clients holds; providers that are not told count for none."""
        own = [
            d for d, c in zip(self.questions["document"], self.questions["client"], strict=True) if client in (None, c)
        ]
        pages = set(own)
        providers, documents = ({self.pages[name][page] for page in pages} for name in ("provider", "document"))
        return Size(len(providers - {""}), len(documents), len(pages), len(own))

    def clients(self) -> list[Size]:
        """What each official client holds; empty where there are none."""
        return [self.size(c) for c in sorted(set(self.questions["client"]))] if self.with_clients else []

    def split(self, images: Path, image_size: int) -> Split:
        """The split as tables, its pictures read by several threads in the order of the pages."""
        names = [*QUESTIONS.names, *(["client"] if self.with_clients else []), "set_name"]
        kinds = {f.name: f.type for f in [*QUESTIONS, *DOCUMENTS]} | {"client": pa.int32(), "set_name": pa.string()}
        examples = {name: pa.array(self.questions[name], kinds[name]) for name in names}
        pages = {name: pa.array(self.pages[name], kinds[name]) for name in ("id", "provider", "words", "boxes")}
        count = len(self.row_of_page)
        if image_size:
            pages["image"] = pa.array(_pictures(images, list(self.row_of_page), image_size), pa.binary())
        else:
            pages["image_path"] = pa.array([str(_file(images, page)) for page in self.row_of_page], pa.string())
        pages |= {side: pa.array(np.full(count, image_size, np.int32)) for side in ("width", "height")}
        pages["document"] = pa.array(self.pages["document"], pa.string())
        return Split(pa.table(examples), pa.table(pages))


def _columns(*names: str) -> dict[str, list[Any]]:
    return {name: [] for name in names}


def _file(folder: Path, page: str) -> Path:
    return folder / f"{page}.jpg"


def _pictures(folder: Path, pages: Iterable[str], size: int) -> list[bytes]:
    with truncated_files(read=True), ThreadPoolExecutor(os.cpu_count()) as threads:
        return list(threads.map(lambda page: shrink(_file(folder, page), size, "RGB", "JPEG"), pages))


def _train(imdb: Path) -> Rows:
    """The training split, with its official clients where the release has them."""
    files = pfl_files.train_files(imdb)
    providers = pfl_files.providers_of_rows(imdb, list(files))
    rows = Rows(need_answers=True, with_clients=-1 not in files)
    for client, path in files.items():
        left = dict(providers[client])
        for row, record in pfl_files.read_records(path):
            provider = left.pop(row, None)
            if provider is None:
                raise DataError(f"{path} row {row}: data_points.json gives it to no provider of client {client}")
            rows.add(record, provider, client, f"{path.stem}-{row}")
        if left:
            raise DataError(f"{path}: data_points.json names row {min(left)} of client {client}, which it has not")
    return rows


def _whole(imdb: Path) -> Mapping[str, Rows]:
    """The splits without clients: valid, test, and of the test what is about unseen providers."""
    told = pfl_files.providers_of_documents(imdb)
    splits: dict[str, Rows] = {}
    for name, path in pfl_files.whole_files(imdb).items():
        for row, record in pfl_files.read_records(path):
            part = "unseen" if name == "test" and record.set_name.endswith("negative") else name
            rows = splits.setdefault(part, Rows(need_answers=name == "valid"))
            rows.add(record, told.get(record.document, ""), -1, f"{path.stem}-{row}")
    return splits
