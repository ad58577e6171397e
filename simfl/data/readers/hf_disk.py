"""Data sets saved to disk by the Hugging Face library `datasets`, read with Arrow only.

    dataset_dict.json                     names of the splits, if there are several
    SPLIT/state.json                      the files of the split, in order
    SPLIT/dataset_info.json               types of the columns: images, names of classes
    SPLIT/data-00000-of-00002.arrow       an Arrow stream

The settings map simfl's columns to those of the data set; a dotted name addresses a nested field (`question.en`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
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
from simfl.data.io.tables import TableBuilder
from simfl.data.soundness import require_split_name
from simfl.errors import ConfigError, DataError, nearest

VERSION = 1
SPLITS = {"train": "train", "validation": "valid", "val": "valid", "valid": "valid", "dev": "valid", "test": "test"}
COLUMNS = ("id", "image", "question", "answers", "field", "words", "boxes", "provider", "label", "text")
TEXTS = pa.schema(
    [("id", pa.string()), ("text", pa.string()), ("label", pa.int32()), ("class", pa.string()), ("domain", pa.string())]
)
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
    columns: Mapping[str, str]  # simfl's id, image, question, answers, field, words, boxes, … -> column of the data set
    groups: tuple[str, ...] = ()  # further columns of the data set, stored as text to partition by
    box_scale: PositiveFloat = 1.0  # boxes are divided by this: 1000 for LayoutLM's
    image_size: PositiveInt = 224  # images are stored in colour, resized to this many pixels square
    example: ClassVar[Mapping[str, object]] = {"columns": {"image": "image", "label": "label"}}

    def load(self, cache: Path) -> Dataset:
        """Read the data set from the cache or its files."""
        for name in self.columns:
            if name not in COLUMNS:
                raise ConfigError(f"data.columns: unknown column {name!r}; {nearest(name, COLUMNS)}")
        if not {"question", "label", "text"} & set(self.columns):
            raise ConfigError("data.columns: one of question, label and text is required, it defines the task")
        for name in self.groups:
            if name in (*QUESTIONS.names, *DOCUMENTS.names, *IMAGES.names, *WORD_IMAGES.names, "counts"):
                raise ConfigError(f"data.groups: {name!r} is a column of simfl; rename it in the data set")
        files = _find_files(records.resolve_folder(self.path))
        sources = [path for paths in files.values() for path in paths]
        return load_or_build(cache, "hf_disk", VERSION, self, sources, lambda: self._build(files))

    def _build(self, files: Mapping[str, list[Path]]) -> Dataset:
        if "question" in self.columns:
            builders = {split: self._read_questions(split, paths) for split, paths in files.items()}
            return build_question_dataset("hf_disk", builders, {})
        names = _class_names(files["train"][0].parent, self.columns.get("label", ""))
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
            label = records.get_int(row.where, row.values, "label")
            name = names[label] if 0 <= label < len(names) else ""
            domain = str(row.values.get("provider") or "")
            id = _id(row, str(row.number))
            table.add(id=id, text=text, label=label, domain=domain, **{"class": name}, **self._groups(row))
        return Split(table.table())

    def _target(self, row: HfRow, names: list[str], source: str) -> dict[str, object]:
        if "text" in self.columns:
            return {"text": records.get_text(row.where, row.values, "text"), "source": source}
        label = records.get_int(row.where, row.values, "label")
        name = names[label] if 0 <= label < len(names) else ""
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
            table = _read_stream(path)
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


def _find_files(root: Path) -> dict[str, list[Path]]:
    """Return the Arrow files of each split, in order."""
    listing = records.find(root, "dataset_dict.json")
    names = records.get_texts(str(listing), records.read_json_mapping(listing), "splits") if listing else [""]
    found = {}
    for name in names:
        split = SPLITS.get(name, name) if name else "train"
        require_split_name(split, str(listing))
        if split in found:
            raise DataError(f"{listing}: {name} is a second split {split}; remove one of them")
        path = records.require(root / name, "state.json")
        state = records.read_json_mapping(path)
        if state.get("_indices_data_files") or state.get("_indices_files"):
            raise DataError(f"{root / name}: saved with a selection of rows; call flatten_indices() and save again")
        listed = records.as_list(str(path), state.get("_data_files") or [], "_data_files")
        entries = [records.as_mapping(str(path), entry) for entry in listed]
        listed_files = [records.get_text(str(path), entry, "filename") for entry in entries]
        found[split] = [_listed_file(root / name, file, str(path)) for file in listed_files]
    if not found.get("train"):
        raise DataError(f"data.path: {root} has no split train")
    return found


def _listed_file(folder: Path, name: str, where: str) -> Path:
    """Return the path of a file that `state.json` lists; DataError if it is elsewhere or missing."""
    path = records.inside(folder, name, where)
    if not path.is_file():
        raise DataError(f"{path} is missing, but {where} lists it")
    return path


def _read_stream(path: Path) -> pa.Table:
    try:
        table = pa.ipc.open_stream(pa.memory_map(str(path))).read_all()
        table.validate(full=True)  # a wrong offset would end the process when the values are read
    except (OSError, ValueError, pa.ArrowException) as error:
        raise DataError(f"{path}: not a readable Arrow stream ({str(error).splitlines()[0]})") from error
    return table


def _class_names(folder: Path, column: str) -> list[str]:
    """Return the names of the classes, if the column has names."""
    path = folder / "dataset_info.json"
    if not path.is_file():
        return []
    where = str(path)
    features = records.as_mapping(where, records.read_json_mapping(path).get("features") or {}, "features")
    feature = records.as_mapping(where, features.get(column) or {}, column)
    return [str(name) for name in records.as_list(where, feature.get("names") or [], "names")]


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
