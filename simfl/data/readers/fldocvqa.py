"""The data sets of federated document VQA as its published converter writes them (Nguyen et al. 2024, fldocvqa).

SET/{train,val,test}/vqa.npy     object array without a header: question, answers, words, boxes, picture
SET/images/NAME.png              page 0 at 300 dpi
fldocvqa/train/…_nonidd{K}.json  who holds which rows of which set
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from simfl.constraints import Whole
from simfl.data.base import Data, Dataset, Published
from simfl.data.io import records
from simfl.data.io.gather import Gather, Missing, Pictures, finish, kept
from simfl.data.io.plain_pickle import load_records
from simfl.data.io.records import Record
from simfl.errors import DataError

EDITION = 1
NAMES = {"train": "train", "valid": "val", "test": "test"}


@dataclass(frozen=True)
class Fldocvqa(Data):
    """WTQ, DocVQA and TabFact as fldocvqa converts them, with its own clients where its partition file is given."""

    path: str  # the folder that holds docvqa/, wtq/, tabfact/; ~ and $VARIABLES are followed
    sets: tuple[str, ...] = ("wtq", "docvqa", "tabfact")  # the names of the folders
    partition: str | None = None  # its JSON, such as fldocvqa/train/…_nonidd10.json: examples get the column `client`
    image_size: Whole = 224  # pages are stored in colour, squeezed to this many pixels square; 0: paths only
    missing: Missing = "refuse"  # drop: leave out questions on pages that are not there

    TRAIN_DOCUMENTS: ClassVar[dict[str, int]] = {"wtq": 1346, "docvqa": 10194, "tabfact": 13163}
    # of the sets as their authors published them; DUE's selection of tables is not counted anywhere
    TRAIN_QUESTIONS: ClassVar[dict[str, int]] = {"wtq": 11321, "docvqa": 39463, "tabfact": 92283}

    def load(self, cache: Path) -> Dataset:
        root = records.folder(self.path)
        files = {
            split: {s: records.need(root, f"{s}/{name}/vqa.npy") for s in self.sets} for split, name in NAMES.items()
        }
        held = None if self.partition is None else records.file(self.partition)
        sources = [*(path for paths in files.values() for path in paths.values()), *([held] if held else [])]
        return kept(cache, "fldocvqa", EDITION, self, sources, lambda: self._build(root, files, held))

    def published(self) -> Published | None:
        if self.partition is not None or not set(self.sets) <= self.TRAIN_DOCUMENTS.keys():
            return None
        questions = {name: self.TRAIN_QUESTIONS[name] for name in self.sets}
        documents = {name: self.TRAIN_DOCUMENTS[name] for name in self.sets}
        return Published(sum(questions.values()), by={"dataset": questions}, documents=documents)

    def _build(self, root: Path, files: Mapping[str, Mapping[str, Path]], held: Path | None) -> Dataset:
        client_of = {} if held is None else _clients(held)
        more = [("dataset", pa.string()), *([("client", pa.int32())] if held else [])]
        gathered = {}
        for split, paths in files.items():
            mine = more if split == "train" else more[:1]
            gather = gathered[split] = Gather(Pictures(self.image_size, self.missing), split != "test", mine)
            for name, path in paths.items():
                for row, where, record in _records(path):
                    told = {"client": client_of.get((name, row), -1)} if held and split == "train" else {}
                    _ask(gather, root, name, where, record, told)
        card = {
            "licence": "each set's own",
            "boxes": "as the converter wrote them: shares of page 0 at 300 dpi, cut at 1",
        }
        return finish("fldocvqa", gathered, card)


def _records(path: Path) -> Iterator[tuple[int, str, dict[str, Any]]]:
    for row, entry in enumerate(load_records(path)):
        yield row, f"{path} row {row}", records.mapping(f"{path} row {row}", entry)


def _ask(gather: Gather, root: Path, name: str, where: str, record: Record, told: Mapping[str, Any]) -> None:
    image = records.text(where, record, "image_name")
    words = [word for word in records.texts(where, record, "ocr_tokens") if word.strip()]
    boxes = _boxes(where, record)
    key = f"{name}/{image}"
    page = gather.page(where, key, root / name / "images" / f"{image}.png", words, boxes)
    meta = records.mapping(where, record.get("metadata") or {}, "metadata")
    # the converter shares one mapping between the questions of a document, so ids may be the last one's
    id = f"{name}/{meta.get('question_id') or meta.get('id') or image}"
    answers = [answer for answer in dict.fromkeys(records.texts(where, record, "answers")) if answer]
    gather.ask(id, page, records.text(where, record, "question"), answers, dataset=name, **told)


def _boxes(where: str, record: Record) -> np.ndarray:
    """Boxes of the words that are not blank, flat."""
    tokens = records.texts(where, record, "ocr_tokens")
    try:
        boxes = np.asarray(record.get("ocr_normalized_boxes"), np.float32).reshape(len(tokens), 4)
    except (ValueError, TypeError):
        raise DataError(f"{where}: ocr_normalized_boxes are not 4 numbers for each of {len(tokens)} words") from None
    if not np.isfinite(boxes).all():
        raise DataError(f"{where}: ocr_normalized_boxes hold {boxes[~np.isfinite(boxes)][0]}")
    real = np.array([bool(token.strip()) for token in tokens], bool)
    return np.clip(boxes[real], 0.0, 1.0).reshape(-1)


def _clients(path: Path) -> dict[tuple[str, int], int]:
    """The client of each row of each set; DataError if a row is in two."""
    content = records.mapping(str(path), records.json_file(path))
    held = records.mapping(str(path), (content.get("partitions") or {}).get("docvqa"), "partitions.docvqa")
    client_of: dict[tuple[str, int], int] = {}
    for number, (client, sets) in enumerate(sorted(held.items(), key=lambda item: _number(path, item[0]))):
        for name, rows in records.mapping(f"{path}: client {client}", sets).items():
            for row in rows:
                if client_of.setdefault((name, int(row)), number) != number:
                    raise DataError(f"{path}: row {row} of {name} is in two clients, {client} is one")
    return client_of


def _number(path: Path, client: str) -> int:
    if not client.isdigit():
        raise DataError(f"{path}: the client {client!r} is no number")
    return int(client)
