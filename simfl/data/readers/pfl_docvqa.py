"""PFL-DocVQA: questions on invoices of about 400 providers for each of ten clients.

Tito et al. 2024 (Privacy-aware document visual question answering) and the report of the NeurIPS 2023 competition.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from simfl.data.base import DOCUMENTS, QUESTIONS, Data, Dataset, Published, Split
from simfl.data.io import records
from simfl.data.io.arrow_store import content_sha256, load_or_build
from simfl.data.io.images import resize_image
from simfl.data.readers import pfl_format
from simfl.data.readers.pfl_format import NO_CLIENT, PflQuestion
from simfl.errors import DataError

VERSION = 2


@dataclass(frozen=True)
class PflSize:
    """Size of a client or a split."""

    providers: int
    documents: int
    pages: int
    questions: int


@dataclass(frozen=True)
class PflDocvqa(Data):
    """Invoices of the PFL-DocVQA competition in their official layout, ten official clients.

    Training examples have the column `client`; examples have `set_name`, pages `document`. Test questions on providers
    without training documents (set names ending in `negative`) form the split `unseen`. Providers that the release does
    not name are the empty text.
    """

    path: str  # folder with imdb/ and images/; ~ and $VARIABLES are expanded
    image_size: int = 224  # pages are stored in colour, resized to this many pixels square; 0: paths only

    CLIENTS: ClassVar[tuple[PflSize, ...]] = (
        PflSize(400, 2224, 5930, 19465),
        PflSize(418, 2382, 6694, 22229),
        PflSize(404, 2296, 6667, 21673),
        PflSize(414, 2358, 6751, 22148),
        PflSize(429, 4543, 12071, 32472),
        PflSize(423, 2378, 6984, 22361),
        PflSize(423, 2700, 7406, 23801),
        PflSize(416, 1951, 5617, 18462),
        PflSize(401, 1932, 5421, 17868),
        PflSize(421, 2136, 6353, 20840),
    )
    SPLITS: ClassVar[dict[str, PflSize]] = {
        "valid": PflSize(2231, 3536, 9150, 30491),
        "test": PflSize(1390, 2875, 8088, 25603),
        "unseen": PflSize(977, 1912, 5375, 17988),
    }

    def load(self, cache: Path) -> Dataset:
        """Read the data set from the cache or its files."""
        root = Path(os.path.expandvars(self.path)).expanduser()
        imdb = pfl_format.annotation_folder(root)
        sources = sorted(path for path in imdb.iterdir() if path.suffix in (".npy", ".json"))
        build = lambda: self._build(imdb, root / "images")
        return load_or_build(cache, "pfl_docvqa", VERSION, self, sources, build)

    def published(self) -> Published:
        """Return the published sizes of the ten clients."""
        questions = tuple(size.questions for size in self.CLIENTS)
        return Published(sum(questions), questions, tuple(size.providers for size in self.CLIENTS))

    def _build(self, imdb: Path, images: Path) -> Dataset:
        builders = {"train": _read_train(imdb), **_read_evaluation(imdb)}
        splits = {name: builder.build(images, self.image_size) for name, builder in builders.items()}
        digest = content_sha256(splits, also=str(self.image_size), exclude=("image", "image_path"))
        card = {
            "licence": "as the competition gives it: research use",
            "clients": [asdict(size) for size in builders["train"].client_sizes()],
            "splits": {name: asdict(builder.size()) for name, builder in builders.items()},
            "dropped": {name: dict(builder.dropped) for name, builder in builders.items()},
            "image": f"colour, resized to {self.image_size}x{self.image_size}, JPEG" if self.image_size else "paths",
            "boxes": "as given, clipped to [0, 1]",
        }
        return Dataset("pfl_docvqa", splits, digest, card)


@dataclass
class PflSplitBuilder:
    """Builder of one split, which holds questions and pages as columns."""

    need_answers: bool
    with_clients: bool = False
    questions: dict[str, list[Any]] = field(default_factory=lambda: _columns(*QUESTIONS.names, "client", "set_name"))
    pages: dict[str, list[Any]] = field(
        default_factory=lambda: _columns("id", "provider", "words", "boxes", "document")
    )
    row_of_page: dict[str, int] = field(default_factory=dict)
    ids: set[str] = field(default_factory=set)
    dropped: Counter[str] = field(default_factory=Counter)

    def add(self, question: PflQuestion, provider: str, client: int, spare_id: str) -> None:
        """Add a question, and its page if it is new. `spare_id` is unique over all files of the split."""
        if self.need_answers and not question.answers:
            self.dropped["no answer"] += 1
            return
        page = self._add_page(question, provider)
        id = question.id if question.id is not None and question.id not in self.ids else spare_id
        self.ids.add(id)
        values = (id, page, question.question, question.answers, "", client, question.set_name)
        for column, value in zip(self.questions.values(), values, strict=True):
            column.append(value)

    def _add_page(self, question: PflQuestion, provider: str) -> int:
        row = self.row_of_page.get(question.page)
        if row is None:
            values = (question.page, provider, question.words, question.boxes(), question.document)
            for column, value in zip(self.pages.values(), values, strict=True):
                column.append(value)
            row = self.row_of_page[question.page] = len(self.row_of_page)
            return row
        if (other := self.pages["provider"][row]) != provider:
            raise DataError(f"{question.where}: page {question.page} belongs to {provider!r}, elsewhere to {other!r}")
        if self.pages["words"][row] != question.words:
            self.dropped["other words of a known page"] += 1
        return row

    def size(self, client: int | None = None) -> PflSize:
        """Return the size of the split or of one client; unknown providers are not counted."""
        clients = self.questions["client"]
        rows = [row for row, c in zip(self.questions["document"], clients, strict=True) if client in (None, c)]
        pages = set(rows)
        providers, documents = ({self.pages[name][page] for page in pages} for name in ("provider", "document"))
        return PflSize(len(providers - {""}), len(documents), len(pages), len(rows))

    def client_sizes(self) -> list[PflSize]:
        """Return the size of each official client; empty if the split has no clients."""
        return [self.size(c) for c in sorted(set(self.questions["client"]))] if self.with_clients else []

    def build(self, images: Path, image_size: int) -> Split:
        """Return the split as tables; several threads read the images, in the order of the pages."""
        names = [*QUESTIONS.names, *(["client"] if self.with_clients else []), "set_name"]
        types = {f.name: f.type for f in [*QUESTIONS, *DOCUMENTS]} | {"client": pa.int32(), "set_name": pa.string()}
        examples = {name: pa.array(self.questions[name], types[name]) for name in names}
        pages = {name: pa.array(self.pages[name], types[name]) for name in ("id", "provider", "words", "boxes")}
        num_pages = len(self.row_of_page)
        if image_size:
            pages["image"] = pa.array(_read_images(images, self.row_of_page, image_size), pa.binary())
        else:
            pages["image_path"] = pa.array([str(_image_path(images, page)) for page in self.row_of_page], pa.string())
        pages |= {side: pa.array(np.full(num_pages, image_size, np.int32)) for side in ("width", "height")}
        pages["document"] = pa.array(self.pages["document"], pa.string())
        return Split(pa.table(examples), pa.table(pages))


def _columns(*names: str) -> dict[str, list[Any]]:
    return {name: [] for name in names}


def _image_path(folder: Path, page: str) -> Path:
    return records.inside(folder, f"{page}.jpg")


def _read_images(folder: Path, pages: Iterable[str], size: int) -> list[bytes]:
    def read(page: str) -> bytes:
        return resize_image(_image_path(folder, page), size, "RGB", "JPEG", truncated=True)  # the release has a few

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        return list(threads.map(read, pages))


def _read_train(imdb: Path) -> PflSplitBuilder:
    """Read the training split, with its official clients if the release has them."""
    files = pfl_format.find_train_files(imdb)
    providers = pfl_format.read_row_providers(imdb, list(files))
    builder = PflSplitBuilder(need_answers=True, with_clients=NO_CLIENT not in files)
    for client, path in files.items():
        unread = dict(providers[client])
        for row, question in pfl_format.read_questions(path):
            provider = unread.pop(row, None)
            if provider is None:
                raise DataError(f"{path} row {row}: data_points.json assigns it to no provider of client {client}")
            builder.add(question, provider, client, f"{path.stem}-{row}")
        if unread:
            raise DataError(f"{path}: data_points.json lists row {min(unread)} of client {client}, which is missing")
    return builder


def _read_evaluation(imdb: Path) -> Mapping[str, PflSplitBuilder]:
    """Read the splits without clients: valid, test, and the part of the test set on unseen providers."""
    providers = pfl_format.read_document_providers(imdb)
    builders: dict[str, PflSplitBuilder] = {}
    for name, path in pfl_format.find_evaluation_files(imdb).items():
        for row, question in pfl_format.read_questions(path):
            part = "unseen" if name == "test" and question.set_name.endswith("negative") else name
            builder = builders.setdefault(part, PflSplitBuilder(need_answers=name == "valid"))
            builder.add(question, providers.get(question.document, ""), NO_CLIENT, f"{path.stem}-{row}")
    return builders
