"""DocVQA on one page (SP) and on many (MP) as the files that VT5 was pretrained on: NumPy object arrays.

Mathew et al. 2021 (DocVQA); Tito et al. 2023 (hierarchical multimodal transformers for multi-page DocVQA).

    imdb/new_imdb_{train,val,test}.npy   SP: a header, then one record a question
    imdb/imdb_{train,val,test}.npy       MP: likewise; names, words and boxes are lists over pages
    images/NAME.{png,jpg}

A folder NAME.lmdb beside or in place of NAME.npy has the same records, pickled, under the keys 0, 1, 2, …
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa

from simfl.constraints import Whole
from simfl.data.base import Data, Dataset
from simfl.data.io import records
from simfl.data.io.gather import Gather, Missing, Pictures, finish, kept
from simfl.data.io.lmdb_folder import opened
from simfl.data.io.plain_pickle import BROKEN, load_records, loads
from simfl.data.io.records import Record
from simfl.errors import DataError

EDITION = 1
NAMES = {"train": "train", "valid": "val", "test": "test"}
LICENCE = "the challenge's: research use"


@dataclass(frozen=True)
class SpDocvqa(Data):
    """Questions on single pages: SP-DocVQA as imdb files."""

    path: str  # a folder with imdb/ (or the .npy files themselves) and images/; ~ and $VARIABLES are followed
    image_size: Whole = 224  # pages are stored in colour, squeezed to this many pixels square; 0: paths only
    missing: Missing = "refuse"  # drop: leave out questions on pages that are not there

    QUESTIONS: ClassVar[dict[str, int]] = {"train": 39463, "valid": 5349, "test": 5188}
    PAGES: ClassVar[dict[str, int]] = {"train": 10194, "valid": 1286, "test": 1287}

    def load(self, cache: Path) -> Dataset:
        root = records.folder(self.path)
        files = _files(root, "new_imdb_{}.npy", "imdb_{}.npy")
        return kept(cache, "sp_docvqa", EDITION, self, _stamped(files), lambda: self._build(root, files))

    def _build(self, root: Path, files: dict[str, Path]) -> Dataset:
        gathered = {}
        for split, path in files.items():
            gather = gathered[split] = Gather(Pictures(self.image_size, self.missing), need_answers=split != "test")
            for where, record in _records(path):
                name = records.text(where, record, "image_name")
                words = records.texts(where, record, "ocr_tokens")
                boxes = _boxes(where, record.get("ocr_normalized_boxes"), len(words))
                page = gather.page(where, name, _image(root, name), words, boxes)
                gather.ask(_id(where, record), page, records.text(where, record, "question"), _answers(where, record))
        return finish("sp_docvqa", gathered, {"licence": LICENCE, "boxes": "as given, cut to [0, 1]"})


@dataclass(frozen=True)
class MpDocvqa(Data):
    """Questions on documents of up to 20 pages: MP-DocVQA as imdb files. Examples tell the number of the page."""

    path: str  # a folder with imdb/ (or the .npy files themselves) and images/; ~ and $VARIABLES are followed
    pages: Literal["answer", "first", "all"] = (
        "answer"  # the page with the answer, the first, or each page's words in turn
    )
    image_size: Whole = 224  # pages are stored in colour, squeezed to this many pixels square; 0: paths only
    missing: Missing = "refuse"  # drop: leave out questions on pages that are not there

    QUESTIONS: ClassVar[dict[str, int]] = {"train": 36230, "valid": 5187, "test": 5019}

    def load(self, cache: Path) -> Dataset:
        root = records.folder(self.path)
        files = _files(root, "imdb_{}.npy", "new_imdb_{}.npy")
        return kept(cache, "mp_docvqa", EDITION, self, _stamped(files), lambda: self._build(root, files))

    def _build(self, root: Path, files: dict[str, Path]) -> Dataset:
        gathered = {}
        for split, path in files.items():
            pictures = Pictures(self.image_size, self.missing)
            gather = gathered[split] = Gather(pictures, split != "test", [("answer_page", pa.int32())])
            for where, record in _records(path):
                self._ask(gather, root, where, record)
        card = {"licence": LICENCE, "boxes": "as given, cut to [0, 1]", "page": self.pages}
        return finish("mp_docvqa", gathered, card)

    def _ask(self, gather: Gather, root: Path, where: str, record: Record) -> None:
        names = records.texts(where, record, "image_name")
        tokens, boxes = (_pages(where, record, f, len(names)) for f in ("ocr_tokens", "ocr_normalized_boxes"))
        told = record.get("answer_page_idx")
        if told is not None and not (isinstance(told, int) and 0 <= told < len(names)):
            raise DataError(f"{where}: answer_page_idx is {told!r}, the question has {len(names)} pages")
        if told is None and self.pages == "answer":
            gather.dropped["page of the answer withheld"] += 1
            return
        one = told if told is not None and self.pages == "answer" else 0
        chosen = list(range(len(names))) if self.pages == "all" else [one]
        words = [word for p in chosen for word in records.texts(where, {"ocr_tokens": tokens[p]}, "ocr_tokens")]
        shares = np.concatenate([_boxes(where, boxes[p], len(tokens[p])) for p in chosen])
        name = names[chosen[0]]
        key = f"{name}-{names[-1]}" if self.pages == "all" else name
        page = gather.page(where, key, _image(root, name), words, shares)
        question, answers = records.text(where, record, "question"), _answers(where, record)
        gather.ask(_id(where, record), page, question, answers, answer_page=told)


def _files(root: Path, *patterns: str) -> dict[str, Path]:
    folder = records.found(root, "imdb", "imdbs") or root
    patterns = (*patterns, *(pattern.replace(".npy", ".lmdb") for pattern in patterns))
    found = {split: records.found(folder, *(p.format(name) for p in patterns)) for split, name in NAMES.items()}
    if not any(found.values()):
        raise DataError(f"{folder}: {patterns[0].format('train')} is missing")
    return {split: path for split, path in found.items() if path}


def _stamped(files: dict[str, Path]) -> list[Path]:
    return [path / "data.mdb" if path.is_dir() else path for path in files.values()]


def _records(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The records with their file and row, as the array counts them; a header without a question is left out."""
    if path.is_dir():
        yield from _keyed(path)
        return
    entries = load_records(path)
    for row in range(len(entries)):
        where = f"{path} row {row}"
        record = records.mapping(where, entries[row])
        entries[row] = None  # a file takes gigabytes as objects; what is read is let go
        if row or "question" in record:
            yield where, record


def _keyed(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The records of an LMDB folder, likewise."""
    with opened(folder) as get:
        for row in itertools.count():
            value, where = get(b"%d" % row), f"{folder} row {row}"
            if value is None:
                break
            try:
                record = records.mapping(where, loads(value))
            except BROKEN as error:
                raise DataError(f"{where}: not a plain record ({error})") from error
            if row or "question" in record:
                yield where, record


def _id(where: str, record: Record) -> str:
    return records.name(where, record, "question_id") if "question_id" in record else where.rpartition("/")[2]


def _answers(where: str, record: Record) -> list[str]:
    """A list, one text, or nothing at all."""
    given = record.get("answers")
    return [given] if isinstance(given, str) else [] if given is None else records.texts(where, record, "answers")


def _pages(where: str, record: Record, field: str, count: int) -> list[Any]:
    value = record.get(field)
    if not isinstance(value, list) or len(value) != count:
        raise DataError(f"{where}: {field} does not have one entry for each of {count} pages")
    return value


def _boxes(where: str, given: Any, count: int) -> np.ndarray:
    try:
        boxes = np.asarray(given, np.float32).reshape(count, 4)
    except (ValueError, TypeError):
        raise DataError(f"{where}: ocr_normalized_boxes are not 4 numbers for each of {count} words") from None
    if not np.isfinite(boxes).all():
        raise DataError(f"{where}: ocr_normalized_boxes hold {boxes[~np.isfinite(boxes)][0]}")
    return np.clip(boxes, 0.0, 1.0).reshape(-1)


def _image(root: Path, name: str) -> Path:
    return records.found(root / "images", f"{name}.png", f"{name}.jpg") or root / "images" / f"{name}.png"
