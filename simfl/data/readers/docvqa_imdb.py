"""DocVQA on one page (SP) and on many (MP), as the files that VT5 was pretrained on: NumPy object arrays.

Mathew et al. 2021 (DocVQA); Tito et al. 2023 (hierarchical multimodal transformers for multi-page DocVQA).

    imdb/new_imdb_{train,val,test}.npy   SP: a header, then one record a question
    imdb/imdb_{train,val,test}.npy       MP: likewise; names, words and boxes are lists over pages
    images/NAME.{png,jpg}

A folder NAME.lmdb next to or in place of NAME.npy has the same records, pickled, under the keys 0, 1, 2, …
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import pyarrow as pa

from simfl.constraints import NonNegativeInt
from simfl.data.base import Data, Dataset
from simfl.data.io import records
from simfl.data.io.arrow_store import load_or_build
from simfl.data.io.images import MissingImages
from simfl.data.io.questions import ImageStorage, QuestionSplitBuilder, build_question_dataset
from simfl.data.io.records import Record
from simfl.data.io.restricted_pickle import UNPICKLE_ERRORS, load_object_array, loads
from simfl.errors import DataError

VERSION = 1
NAMES = {"train": "train", "valid": "val", "test": "test"}
LICENCE = "the challenge's: research use"
BOXES = "ocr_normalized_boxes"


@dataclass(frozen=True)
class SpDocvqa(Data):
    """Questions on single pages: SP-DocVQA as imdb files."""

    path: str  # folder with imdb/ (or the .npy files) and images/; ~ and $VARIABLES are expanded
    image_size: NonNegativeInt = 224  # pages are stored in colour, resized to this many pixels square; 0: paths only
    missing: MissingImages = "refuse"  # drop: leave out questions on missing pages

    QUESTIONS: ClassVar[dict[str, int]] = {"train": 39463, "valid": 5349, "test": 5188}
    PAGES: ClassVar[dict[str, int]] = {"train": 10194, "valid": 1286, "test": 1287}

    def load(self, cache: Path) -> Dataset:
        """Read the data set from the cache or its files."""
        root = records.resolve_folder(self.path)
        files = _find_files(root, "new_imdb_{}.npy", "imdb_{}.npy")
        return load_or_build(cache, "sp_docvqa", VERSION, self, _sources(files), lambda: self._build(root, files))

    def _build(self, root: Path, files: dict[str, Path]) -> Dataset:
        images = ImageStorage(self.image_size, self.missing)
        builders = {split: QuestionSplitBuilder(images, need_answers=split != "test") for split in files}
        for split, path in files.items():
            for where, record in _read(path):
                name = records.get_text(where, record, "image_name")
                words = records.get_texts(where, record, "ocr_tokens")
                boxes = records.get_boxes(where, record, BOXES, len(words)).reshape(-1)
                page = builders[split].add_page(where, name, _image_path(root, name), words, boxes)
                question = records.get_text(where, record, "question")
                builders[split].add_question(_id(where, record), page, question, _answers(where, record))
        card = {"licence": LICENCE, "boxes": "as given, clipped to [0, 1]"}
        return build_question_dataset("sp_docvqa", builders, card)


@dataclass(frozen=True)
class MpDocvqa(Data):
    """Questions on documents of up to 20 pages: MP-DocVQA as imdb files. Examples have the page of the answer."""

    path: str  # folder with imdb/ (or the .npy files) and images/; ~ and $VARIABLES are expanded
    pages: Literal["answer", "first", "all"] = "answer"  # page with the answer, first page, or the words of all pages
    image_size: NonNegativeInt = 224  # pages are stored in colour, resized to this many pixels square; 0: paths only
    missing: MissingImages = "refuse"  # drop: leave out questions on missing pages

    QUESTIONS: ClassVar[dict[str, int]] = {"train": 36230, "valid": 5187, "test": 5019}

    def load(self, cache: Path) -> Dataset:
        """Read the data set from the cache or its files."""
        root = records.resolve_folder(self.path)
        files = _find_files(root, "imdb_{}.npy", "new_imdb_{}.npy")
        return load_or_build(cache, "mp_docvqa", VERSION, self, _sources(files), lambda: self._build(root, files))

    def _build(self, root: Path, files: dict[str, Path]) -> Dataset:
        images = ImageStorage(self.image_size, self.missing)
        columns = [("answer_page", pa.int32())]
        builders = {split: QuestionSplitBuilder(images, split != "test", columns) for split in files}
        for split, path in files.items():
            for where, record in _read(path):
                self._add(builders[split], root, where, record)
        card = {"licence": LICENCE, "boxes": "as given, clipped to [0, 1]", "page": self.pages}
        return build_question_dataset("mp_docvqa", builders, card)

    def _add(self, builder: QuestionSplitBuilder, root: Path, where: str, record: Record) -> None:
        names = records.get_texts(where, record, "image_name")
        tokens, boxes = (_per_page(where, record, field, len(names)) for field in ("ocr_tokens", BOXES))
        answer_page = record.get("answer_page_idx")
        if answer_page is not None and not (isinstance(answer_page, int) and 0 <= answer_page < len(names)):
            raise DataError(f"{where}: answer_page_idx is {answer_page!r}, the question has {len(names)} pages")
        if answer_page is None and self.pages == "answer":
            builder.dropped["page of the answer withheld"] += 1
            return
        first = answer_page if answer_page is not None and self.pages == "answer" else 0
        used = list(range(len(names))) if self.pages == "all" else [first]
        layers = [{"ocr_tokens": tokens[number], BOXES: boxes[number]} for number in used]
        words_of = [records.get_texts(where, layer, "ocr_tokens") for layer in layers]
        shares = [
            records.get_boxes(where, layer, BOXES, len(words)).reshape(-1)
            for layer, words in zip(layers, words_of, strict=True)
        ]
        words = [word for page_words in words_of for word in page_words]
        name = names[used[0]]
        key = f"{name}-{names[-1]}" if self.pages == "all" else name
        page = builder.add_page(where, key, _image_path(root, name), words, np.concatenate(shares))
        question, answers = records.get_text(where, record, "question"), _answers(where, record)
        builder.add_question(_id(where, record), page, question, answers, answer_page=answer_page)


def _find_files(root: Path, *patterns: str) -> dict[str, Path]:
    folder = records.find(root, "imdb", "imdbs") or root
    patterns = (*patterns, *(pattern.replace(".npy", ".lmdb") for pattern in patterns))
    found = {split: records.find(folder, *(p.format(name) for p in patterns)) for split, name in NAMES.items()}
    if not any(found.values()):
        raise DataError(f"{folder}: {patterns[0].format('train')} is missing")
    return {split: path for split, path in found.items() if path}


def _sources(files: dict[str, Path]) -> list[Path]:
    return [path / "data.mdb" if path.is_dir() else path for path in files.values()]


def _read(path: Path) -> Iterator[tuple[str, Record]]:
    """Yield the file and row, as the array counts them, and each record; a header without a question is left out."""
    if path.is_dir():
        yield from _read_lmdb(path)
        return
    entries = load_object_array(path)
    for row in range(len(entries)):
        where = f"{path} row {row}"
        record = records.as_mapping(where, entries[row])
        entries[row] = None  # a file takes gigabytes as objects: free each entry once read
        if row or "question" in record:
            yield where, record


def _read_lmdb(folder: Path) -> Iterator[tuple[str, Record]]:
    with records.open_lmdb(folder) as get:
        for row in itertools.count():
            value, where = get(b"%d" % row), f"{folder} row {row}"
            if value is None:
                break
            try:
                record = records.as_mapping(where, loads(value))
            except UNPICKLE_ERRORS as error:
                raise DataError(f"{where}: not a plain record ({error})") from error
            if row or "question" in record:
                yield where, record


def _id(where: str, record: Record) -> str:
    if "question_id" in record:
        return records.get_identifier(where, record, "question_id")
    return where.rpartition("/")[2]


def _answers(where: str, record: Record) -> list[str]:
    """Return the answers, which the file gives as a list, as one text, or not at all."""
    given = record.get("answers")
    return [given] if isinstance(given, str) else [] if given is None else records.get_texts(where, record, "answers")


def _per_page(where: str, record: Record, field: str, num_pages: int) -> list[object]:
    value = record.get(field)
    if not isinstance(value, list) or len(value) != num_pages:
        raise DataError(f"{where}: {field} does not have one entry for each of {num_pages} pages")
    return value


def _image_path(root: Path, name: str) -> Path:
    return records.find(root / "images", f"{name}.png", f"{name}.jpg") or root / "images" / f"{name}.png"
