"""Data sets of federated document VQA as written by its published converter (Nguyen et al. 2024, fldocvqa).

SET/{train,val,test}/vqa.npy     object array without a header: question, answers, words, boxes, image
SET/images/NAME.png              page 0 at 300 dpi
fldocvqa/train/…_nonidd{K}.json  the rows of each set that each client holds
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa

from simfl.constraints import NonNegativeInt
from simfl.data.base import Data, Dataset, Published
from simfl.data.io import records
from simfl.data.io.arrow_store import load_or_build
from simfl.data.io.images import MissingImages
from simfl.data.io.questions import ImageStorage, QuestionSplitBuilder, build_question_dataset
from simfl.data.io.records import Record
from simfl.data.io.restricted_pickle import load_object_array
from simfl.errors import DataError

VERSION = 1
NAMES = {"train": "train", "valid": "val", "test": "test"}
ClientOf = Mapping[tuple[str, int], int]  # (set, row) -> client
SetFiles = Mapping[str, Mapping[str, Path]]  # split -> set -> file


@dataclass(frozen=True)
class Fldocvqa(Data):
    """WTQ, DocVQA and TabFact as fldocvqa converts them, with its official clients if its partition file is given."""

    path: str  # folder with docvqa/, wtq/, tabfact/; ~ and $VARIABLES are expanded
    sets: tuple[str, ...] = ("wtq", "docvqa", "tabfact")  # names of the folders
    partition: str | None = None  # its JSON, such as fldocvqa/train/…_nonidd10.json: examples get the column `client`
    image_size: NonNegativeInt = 224  # pages are stored in colour, resized to this many pixels square; 0: paths only
    missing: MissingImages = "refuse"  # drop: leave out questions on missing pages

    TRAIN_DOCUMENTS: ClassVar[dict[str, int]] = {"wtq": 1346, "docvqa": 10194, "tabfact": 13163}
    # sizes of the sets as published by their authors; no count of DUE's selection of tables is published
    TRAIN_QUESTIONS: ClassVar[dict[str, int]] = {"wtq": 11321, "docvqa": 39463, "tabfact": 92283}

    def load(self, cache: Path) -> Dataset:
        """Read the data set from the cache or its files."""
        root = records.resolve_folder(self.path)
        files = {
            split: {s: records.require(root, f"{s}/{name}/vqa.npy") for s in self.sets} for split, name in NAMES.items()
        }
        partition = None if self.partition is None else records.resolve_file(self.partition)
        paths = [path for by_set in files.values() for path in by_set.values()]
        sources = [*paths, *([partition] if partition else [])]
        return load_or_build(cache, "fldocvqa", VERSION, self, sources, lambda: self._build(root, files, partition))

    def published(self) -> Published | None:
        """Return the published sizes by set; None for other sets or with a partition file."""
        if self.partition is not None or not set(self.sets) <= self.TRAIN_DOCUMENTS.keys():
            return None
        questions = {name: self.TRAIN_QUESTIONS[name] for name in self.sets}
        documents = {name: self.TRAIN_DOCUMENTS[name] for name in self.sets}
        return Published(sum(questions.values()), by={"dataset": questions}, documents=documents)

    def _build(self, root: Path, files: SetFiles, partition: Path | None) -> Dataset:
        client_of = None if partition is None else _read_clients(partition)
        images = ImageStorage(self.image_size, self.missing)
        builders = {}
        for split, paths in files.items():
            has_clients = client_of is not None and split == "train"
            columns = [("dataset", pa.string()), *([("client", pa.int32())] if has_clients else [])]
            builder = builders[split] = QuestionSplitBuilder(images, split != "test", columns)
            for name, path in paths.items():
                for row, where, record in _read(path):
                    client = {"client": client_of.get((name, row), -1)} if client_of is not None and has_clients else {}
                    _add(builder, root, name, where, record, client)
        boxes = "as the converter wrote them: shares of page 0 at 300 dpi, clipped to 1"
        return build_question_dataset("fldocvqa", builders, {"licence": "each set's own", "boxes": boxes})


def _read(path: Path) -> Iterator[tuple[int, str, Record]]:
    for row, entry in enumerate(load_object_array(path)):
        yield row, f"{path} row {row}", records.as_mapping(f"{path} row {row}", entry)


def _add(
    builder: QuestionSplitBuilder, root: Path, name: str, where: str, record: Record, client: Mapping[str, int]
) -> None:
    image = records.get_text(where, record, "image_name")
    tokens = records.get_texts(where, record, "ocr_tokens")
    is_word = np.array([bool(token.strip()) for token in tokens], bool)
    boxes = records.get_boxes(where, record, "ocr_normalized_boxes", len(tokens))[is_word].reshape(-1)
    words = [token for token in tokens if token.strip()]
    page = builder.add_page(
        where, f"{name}/{image}", records.inside(root / name / "images", f"{image}.png", where), words, boxes
    )
    metadata = records.as_mapping(where, record.get("metadata") or {}, "metadata")
    # the converter shares one mapping among the questions of a document, so an id may be that of its last question
    id = f"{name}/{metadata.get('question_id') or metadata.get('id') or image}"
    answers = [answer for answer in dict.fromkeys(records.get_texts(where, record, "answers")) if answer]
    question = records.get_text(where, record, "question")
    columns: dict[str, object] = {"dataset": name, **client}
    builder.add_question(id, page, question, answers, "", **columns)


def _read_clients(path: Path) -> dict[tuple[str, int], int]:
    """Return the client of each row of each set; DataError if a row belongs to two clients."""
    where = str(path)
    partitions = records.as_mapping(where, records.read_json_mapping(path).get("partitions") or {}, "partitions")
    clients = records.as_mapping(where, partitions.get("docvqa"), "partitions.docvqa")
    client_of: dict[tuple[str, int], int] = {}
    for number, (client, sets) in enumerate(sorted(clients.items(), key=lambda item: _parse_client(path, item[0]))):
        for name, rows in records.as_mapping(f"{path}: client {client}", sets).items():
            for row in records.as_list(f"{path}: client {client}", rows, name):
                if client_of.setdefault((name, int(str(row))), number) != number:
                    raise DataError(f"{path}: row {row} of {name} belongs to two clients, one is {client}")
    return client_of


def _parse_client(path: Path, client: str) -> int:
    if not client.isdigit():
        raise DataError(f"{path}: the client {client!r} is not a number")
    return int(client)
