"""Data sets saved to disk by the Hugging Face library `datasets`, read with Arrow only.

    dataset_dict.json                     names of the splits, if there are several
    SPLIT/state.json                      the files of the split, in order
    SPLIT/dataset_info.json               types of the columns: images, names of classes
    SPLIT/data-00000-of-00002.arrow       an Arrow stream

The settings map simfl's columns to those of the data set; a dotted name addresses a nested field (`question.en`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from simfl.constraints import PositiveFloat, PositiveInt
from simfl.data.base import DOCUMENTS, IMAGES, QUESTIONS, WORD_IMAGES, Data, Dataset, Split
from simfl.data.classes import FROM_TRAIN, find_classes
from simfl.data.faults import Fault
from simfl.data.io import records
from simfl.data.io.arrow_store import content_sha256, load_or_build
from simfl.data.io.images import resize_image
from simfl.data.io.own_documents import flat_boxes
from simfl.data.io.questions import (
    ANSWER_COUNTS,
    ImageStorage,
    QuestionSplitBuilder,
    build_question_dataset,
    count_answers,
)
from simfl.data.io.table_files import read_stream, saved_files
from simfl.data.io.tables import TableBuilder
from simfl.errors import ConfigError, DataError, nearest

VERSION = 1
COLUMNS = ("id", "image", "question", "answers", "field", "words", "boxes", "provider", "label", "text")
TEXTS = pa.schema(
    [("id", pa.string()), ("text", pa.string()), ("label", pa.int32()), ("class", pa.string()), ("domain", pa.string())]
)
RESERVED = (*QUESTIONS.names, *DOCUMENTS.names, *IMAGES.names, *WORD_IMAGES.names, "counts")
BATCH_SIZE = 256  # rows converted to Python objects at a time


@dataclass(frozen=True)
class HfRow:
    """One row of a split."""

    where: str  # file and row, for error messages
    number: int  # in the split, from 0
    values: Mapping[str, Any]  # by simfl's column name


@dataclass(frozen=True)
class HfDisk(Data):
    """A data set saved by the library `datasets` (save_to_disk): questions, or images, words or texts, by `columns`."""

    path: str  # the folder given to save_to_disk; ~ and $VARIABLES are expanded
    columns: Mapping[str, str] = field(
        default_factory=dict
    )  # simfl's id, image, question, answers, field, words, boxes, … -> column; {}: those with these names
    groups: tuple[str, ...] = ()  # further columns, stored as text to partition by; all of plain values for columns {}
    box_scale: PositiveFloat = 1.0  # boxes are divided by this: 1000 for LayoutLM's
    image_size: PositiveInt = 224  # images are stored in colour, resized to this many pixels square
    example: ClassVar[Mapping[str, object]] = {"columns": {"image": "image", "label": "label"}}

    def load(self, cache: Path) -> Dataset:
        """Read the data set from the cache or its files."""
        if not self.columns:
            return self._with_found_columns().load(cache)
        for name in self.columns:
            if name not in COLUMNS:
                raise ConfigError(f"data.columns: unknown column {name!r}; {nearest(name, COLUMNS)}")
        if not {"question", "label", "text"} & set(self.columns):
            raise ConfigError("data.columns: one of question, label and text is required, it defines the task")
        for name in self.groups:
            if name in RESERVED:
                raise ConfigError(f"data.groups: {name!r} is a column of simfl; rename it in the data set")
        files = saved_files(records.resolve_folder(self.path))
        sources = [path for paths in files.values() for path in paths]
        return load_or_build(cache, "hf_disk", VERSION, self, sources, lambda: self._build(files))

    def _with_found_columns(self) -> HfDisk:
        """Return this reader with the columns of train that have simfl's names, and all others of plain values."""
        root = records.resolve_folder(self.path)
        schema = read_stream(saved_files(root)["train"][0]).schema
        columns = {name: name for name in COLUMNS if name in schema.names}
        if not {"question", "label", "text"} & set(columns):
            raise ConfigError(
                f"data.columns: {root} has the columns {', '.join(schema.names)}; none is question, label or text: name"
                f" one, such as columns: {{text: {schema.names[0]}}}"
            )
        plain = [field.name for field in schema if _is_plain(field.type) and field.name not in (*columns, *RESERVED)]
        return replace(self, columns=columns, groups=self.groups or tuple(plain))

    def _build(self, files: Mapping[str, list[Path]]) -> Dataset:
        if "question" in self.columns:
            builders = {split: self._read_questions(split, paths) for split, paths in files.items()}
            return build_question_dataset("hf_disk", builders, {})
        label = self.columns.get("label", "")
        names = _class_names(files["train"][0].parent, label) or _text_labels(files["train"], label)
        texts = {"text", "label"} <= self.columns.keys() and "image" not in self.columns
        read = self._read_texts if texts else self._read_images
        splits = {split: read(paths, names) for split, paths in files.items()}
        card: dict[str, object] = {"examples": {split: len(part) for split, part in splits.items()}}
        if "label" in self.columns:
            card |= _class_card(splits, names)
            card |= {"shape": [3, self.image_size, self.image_size]}
        return Dataset("hf_disk", splits, content_sha256(splits, also=str(self.image_size)), card)

    def _group_columns(self) -> list[tuple[str, pa.DataType]]:
        return [(group, pa.string()) for group in self.groups]

    def _read_questions(self, split: str, paths: list[Path]) -> QuestionSplitBuilder:
        columns = [ANSWER_COUNTS, *self._group_columns()]
        builder = QuestionSplitBuilder(ImageStorage(self.image_size), split != "test", columns)
        for row in self._rows(paths):
            self._add_question(builder, split, row)
        return builder

    def _add_question(self, builder: QuestionSplitBuilder, split: str, row: HfRow) -> None:
        """Add a question; equal images with equal words are stored once."""
        where, values = row.where, row.values
        encoded = _image_bytes(where, values.get("image"))
        question = records.get_text(where, values, "question")
        words = _words(where, values.get("words"))
        boxes = [
            float("nan") if v is None else v / self.box_scale
            for v in flat_boxes(values.get("boxes"), f"{where}: boxes")
        ]
        records.require_boxes(where, boxes, words)
        key = hashlib.sha256(encoded).hexdigest()[:16] if encoded else f"{split}-{row.number}"
        if builder.has_other_words(key, words, boxes):
            key = f"{key}-{row.number}"
        image = partial(resize_image, encoded, self.image_size, "RGB", "JPEG", where) if encoded else None
        page = builder.add_page(where, key, image, words, boxes, str(values.get("provider") or ""))
        given = values.get("answers")
        answers, counts = count_answers(where, [given] if isinstance(given, str) else given)
        id, kind = _id(row, f"{split}-{row.number}"), str(values.get("field") or "")
        builder.add_question(id, page, question, answers, kind, counts=counts, **self._groups(row))

    def _read_images(self, paths: list[Path], names: list[str]) -> Split:
        """Read images with a class, or of words."""
        schema = WORD_IMAGES if "text" in self.columns else IMAGES
        table, size = TableBuilder(pa.schema([*schema, *self._group_columns()])), self.image_size
        for row in self._rows(paths):
            encoded = _image_bytes(row.where, row.values.get("image"))
            if encoded is None:
                raise DataError(f"{row.where}: image is missing")
            target = self._target(row, names, source=paths[0].parent.name)
            image = resize_image(encoded, size, "RGB", "JPEG", row.where)
            id = _id(row, str(row.number))
            table.add(id=id, image=image, width=size, height=size, **target, **self._groups(row))
        return Split(table.table())

    def _read_texts(self, paths: list[Path], names: list[str]) -> Split:
        """Read texts with a class."""
        table = TableBuilder(pa.schema([*TEXTS, *self._group_columns()]))
        for row in self._rows(paths):
            text = records.get_text(row.where, row.values, "text")
            label, name = _label(row, names)
            domain = str(row.values.get("provider") or "")
            id = _id(row, str(row.number))
            table.add(id=id, text=text, label=label, domain=domain, **{"class": name}, **self._groups(row))
        return Split(table.table())

    def _target(self, row: HfRow, names: list[str], source: str) -> dict[str, object]:
        if "text" in self.columns:
            return {"text": records.get_text(row.where, row.values, "text"), "source": source}
        label, name = _label(row, names)
        return {"label": label, "class": name, "domain": str(row.values.get("provider") or "")}

    def _groups(self, row: HfRow) -> dict[str, str]:
        missing = next((name for name in self.groups if row.values[name] is None), None)
        if missing is not None:
            raise DataError(f"{row.where}: {missing} is missing, but data.groups needs it")
        return {name: str(row.values[name]) for name in self.groups}

    def _rows(self, paths: list[Path]) -> Iterator[HfRow]:
        number = 0
        wanted = {**self.columns, **{group: group for group in self.groups}}
        for path in paths:
            table = read_stream(path)
            for theirs in wanted.values():
                if theirs.partition(".")[0] not in table.column_names:
                    raise ConfigError(f"data.columns: {path} has no {theirs!r}; {nearest(theirs, table.column_names)}")
            for batch in table.to_batches(max_chunksize=BATCH_SIZE):
                for record in batch.to_pylist():
                    values = {ours: _nested_value(record, theirs) for ours, theirs in wanted.items()}
                    yield HfRow(f"{path} row {number}", number, values)
                    number += 1


def _class_card(splits: Mapping[str, Split], names: list[str]) -> dict[str, object]:
    """Return what the card says about classes: their names, or the number that the labels of train define.

    Raises:
        DataError: A label of train is no class.
    """
    if names:
        return {"num_classes": len(names), "classes": names}
    found = find_classes({"train": splits["train"]})
    if isinstance(found, Fault):
        raise DataError(str(found))
    return {"num_classes": found.count, FROM_TRAIN: True}


def _class_names(folder: Path, column: str) -> list[str]:
    """Return the names of the classes, if the column has names."""
    path = folder / "dataset_info.json"
    if not path.is_file():
        return []
    where = str(path)
    features = records.as_mapping(where, records.read_json_mapping(path).get("features") or {}, "features")
    feature = records.as_mapping(where, features.get(column) or {}, column)
    return [str(name) for name in records.as_list(where, feature.get("names") or [], "names")]


def _text_labels(paths: Sequence[Path], column: str) -> list[str]:
    """Return the distinct labels of train in alphabetical order, if they are text."""
    tables = [read_stream(path) for path in paths]
    if not all(
        column in table.column_names and pa.types.is_string(table.schema.field(column).type) for table in tables
    ):
        return []
    return sorted({text for table in tables for text in table[column].to_pylist() if text is not None})


def _label(row: HfRow, names: list[str]) -> tuple[int, str]:
    """Return the number and the name of a row's class; DataError for a text that is no label of train."""
    given = row.values.get("label")
    if isinstance(given, str) and given in names:
        return names.index(given), given
    if isinstance(given, str) and not given.isdecimal():
        raise DataError(f"{row.where}: label is {given!r}, which no label of train is; {nearest(given, names)}")
    label = records.get_int(row.where, row.values, "label")
    return label, names[label] if 0 <= label < len(names) else ""


def _is_plain(kind: pa.DataType) -> bool:
    return bool(pa.types.is_primitive(kind) or pa.types.is_string(kind))


def _nested_value(record: Mapping[str, Any], dotted: str) -> Any:
    value: Any = record
    for part in dotted.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _id(row: HfRow, default: str) -> str:
    """Return the id of a row, or the default for a row without one."""
    id = row.values.get("id")
    return default if id is None else str(id)


def _words(where: str, given: object) -> list[str]:
    """Return the words of a page; DataError for one that is not text."""
    words = [] if given is None else records.as_list(where, given, "words")
    for number, word in enumerate(words):
        if not isinstance(word, str):
            raise DataError(f"{where}: word {number} is {word!r}, expected text")
    return [str(word) for word in words]


def _image_bytes(where: str, image: object) -> bytes | None:
    """Return an encoded image, which `datasets` saves as bytes or as a mapping with bytes or a path."""
    if isinstance(image, dict):
        path = image.get("path")
        image = image.get("bytes") or (Path(path).read_bytes() if path and Path(path).is_file() else None)
        if image is None:
            raise DataError(f"{where}: the image {path!r} is not saved with the data, and the file is missing")
    if image is not None and not isinstance(image, bytes):
        raise DataError(f"{where}: image is {type(image).__name__}, expected an encoded image")
    return image
