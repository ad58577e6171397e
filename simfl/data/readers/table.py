"""Your own files: CSV, TSV, JSON lines, JSON, Parquet and saved `datasets`, whose columns the experiment names.

A column has one of the names in `ROLES`, or is given that name by `columns`; a dotted name reads fields of nested
values. Every other column is kept, to partition or to group by. Examples are texts, images, numbers, or questions about
documents, by the columns that there are.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from simfl.constraints import Fraction, PositiveInt
from simfl.data.base import Data, Dataset, split_name
from simfl.data.io.arrow_store import load_or_build
from simfl.data.io.images import resize_image
from simfl.data.io.nested import with_nested
from simfl.data.io.own_documents import PAGE_FIELDS, flat_boxes
from simfl.data.io.roles import INPUTS, ROLES, TEXTS, suggested_columns
from simfl.data.io.table_files import (
    FILE_NAME,
    Columns,
    CsvFormat,
    TableFiles,
    class_names,
    find_table_files,
    read_columns,
)
from simfl.data.readers.own import Own
from simfl.data.soundness import require_split_name
from simfl.errors import ConfigError, DataError, nearest
from simfl.images import measure_image
from simfl.seeds import rng

VERSION = 2
LISTS = ("answers", "words", "boxes")  # roles that CSV files hold as JSON
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".gif", ".ppm")
BOXES_PER_PAGE = 1000.0  # units of LayoutLM's boxes on each side


@dataclass(frozen=True)
class Table(Data):
    """Your own CSV, TSV, JSON lines, JSON or Parquet files, with columns named here."""

    path: str | Mapping[str, str]  # a file, a folder with one file for each split, or {split: file}
    columns: Mapping[str, str] = field(default_factory=dict)  # text, label, image, … -> column, if named otherwise
    features: tuple[str, ...] = ()  # columns of numbers that form the input, in this order
    classes: PositiveInt | tuple[str, ...] | None = None  # number or names of the classes; null: those of train
    image_size: PositiveInt | None = None  # images are stored in colour with so many pixels square; null: as they are
    boxes: Literal["shares", "thousandths", "pixels"] = "shares"  # of the page, of LayoutLM, or of width and height
    delimiter: str | None = None  # between the columns of a CSV file; null: a comma, or a tab in TSV
    valid: Fraction = 0.1  # share for validation, if neither files nor a column name the split
    test: Fraction = 0.2  # share for testing, if neither files nor a column name the split

    example: ClassVar[Mapping[str, object]] = {"columns": {"text": "review", "label": "stars"}}

    def load(self, cache: Path) -> Dataset:
        """Read the data set from the cache or its files."""
        tables = self._tables()
        sources = [*self._files.paths, *(path for columns in tables.values() for path in _image_files(columns))]
        return load_or_build(cache, "table", VERSION, self, sources, lambda: self._build(tables))

    def preview(self, cache: Path) -> Dataset:
        """Read the files without checking their values; nothing is stored."""
        return self._build(self._tables())

    @cached_property
    def _files(self) -> TableFiles:
        return find_table_files(self.path)

    @cached_property
    def _columns(self) -> dict[str, str]:
        """Return the column of each role that has another name."""
        named = dict(self.columns)
        if self._files.kind == "images":
            named.setdefault("image", FILE_NAME)
        return named

    def _tables(self) -> dict[str, Columns]:
        """Return the columns of each split, by simfl's names."""
        for role in self.columns:
            if role not in ROLES:
                raise ConfigError(f"data.columns: unknown {role!r}; {nearest(role, ROLES)}")
        if self.valid + self.test >= 1:
            raise ConfigError(f"data.valid, data.test: {self.valid}, {self.test} given, their sum must be below 1")
        csv = CsvFormat(self.delimiter, tuple(self._columns.get(role, role) for role in TEXTS))
        read = {split: (paths[0], read_columns(paths, csv)) for split, paths in self._files.of_split.items()}
        found = {split: self._renamed(path, columns) for split, (path, columns) in read.items()}
        if list(found) == [""]:
            found = self._divided(found[""])
        if "train" not in found:
            raise DataError(f"data.path: there is no split train; found: {', '.join(found)}")
        return found

    def _renamed(self, path: Path, table: Columns) -> Columns:
        """Return the columns by simfl's names: named roles, features, and all others by their own names."""
        original = list(table)
        table, origin = with_nested(table, [*self._columns.values(), *self.features], str(path))
        names = list(table)
        for role, theirs in self._columns.items():
            if theirs not in names:
                raise ConfigError(f"data.columns.{role}: {path} has no column {theirs!r}; {nearest(theirs, names)}")
        for name in self.features:
            if name not in names:
                raise ConfigError(f"data.features: {path} has no column {name!r}; {nearest(name, names)}")
        used = {*self._columns.values(), *self.features}
        found = {name: values for name, values in table.items() if name not in used}
        found |= {role: table[theirs] for role, theirs in self._columns.items()}
        if self.features:
            found["features"] = _features(path, {name: table[name] for name in self.features})
        if not set(INPUTS) & found.keys():
            raise ConfigError(_no_input(path, table, original))
        if len(set(origin)) < len(origin) and "document" not in found and PAGE_FIELDS & found.keys():
            found["document"] = [f"{path.stem}-{row}" for row in origin]  # questions of one row are about one page
        return self._with_pages(path, _lists_of_json(path, found))

    def _with_pages(self, path: Path, columns: Columns) -> Columns:
        """Return the columns with images as paths or bytes, and boxes as shares of the page."""
        if "image" in columns:
            given, where = columns["image"], (f"{path} row {row}" for row in range(len(columns["image"])))
            columns["image"] = [_image(one, path.parent, at) for one, at in zip(given, where, strict=True)]
            if self._files.kind == "images" and not {"label", "question", "text"} & columns.keys():
                columns |= _folders_as_labels(given)
        if "boxes" in columns and self.boxes != "shares":
            columns["boxes"] = [self._shares(path, columns, row) for row in range(len(columns["boxes"]))]
        return columns

    def _shares(self, path: Path, columns: Columns, row: int) -> list[float | None]:
        where = f"{path} row {row}"
        flat = flat_boxes(columns["boxes"][row], where)
        width, height = BOXES_PER_PAGE, BOXES_PER_PAGE
        if self.boxes == "pixels":
            width, height = _page_size(columns, row, where)
        sides = (width, height) * (len(flat) // 2)
        return [None if value is None else value / side for value, side in zip(flat, sides, strict=True)]

    def _divided(self, columns: Columns) -> dict[str, Columns]:
        """Divide a single file by its column `split`, else by random shares."""
        if "split" in columns:
            given = columns.pop("split")
            missing = next((row for row, name in enumerate(given) if name in (None, "")), None)
            if missing is not None:
                raise DataError(f"data.path: row {missing}: the split is missing")
            of_name = {name: _split_name(str(name)) for name in dict.fromkeys(given)}
            names = np.array([of_name[name] for name in given])
        else:
            names = self._random_splits(columns)
        rows = {name: np.flatnonzero(names == name).tolist() for name in dict.fromkeys(names.tolist())}
        return {
            split: {name: [values[row] for row in chosen] for name, values in columns.items()}
            for split, chosen in sorted(rows.items(), key=lambda item: (item[0] != "train", item[0]))
        }

    def _random_splits(self, columns: Columns) -> np.ndarray:
        """Return the split of each row, drawn by the row; questions about one document are in one split."""
        count = len(next(iter(columns.values())))
        pages = columns.get("document") or columns.get("image") if "question" in columns else None
        number: dict[object, int] = {}
        unit = np.array([number.setdefault(one, len(number)) for one in pages or range(count)])
        rank = rng("table", "split").permutation(len(number))[unit]
        num_test, num_valid = (round(share * len(number)) for share in (self.test, self.valid))
        return np.where(rank < num_test, "test", np.where(rank < num_test + num_valid, "valid", "train"))

    def _build(self, tables: Mapping[str, Columns]) -> Dataset:
        sized = {split: self._resized(split, columns) for split, columns in tables.items()}
        made = Own(sized, classes=self._classes()).read()
        card = {**made.card, "columns": {split: list(columns) for split, columns in tables.items()}}
        card["roles"] = self._columns | ({"features": list(self.features)} if self.features else {})
        if self._files.kind == "images" and (unlisted := self._unlisted(tables)):
            card["noted"] = {"images that metadata does not list": unlisted}
        return Dataset("table", made.splits, made.sha256, card)

    def _unlisted(self, tables: Mapping[str, Columns]) -> int:
        """Return how many image files of the folder no row names."""
        listed = {path.resolve() for columns in tables.values() for path in _image_files(columns)}
        folders = {path.parent for path in self._files.paths}
        images = {p for folder in folders for p in folder.rglob("*") if p.suffix.lower() in IMAGE_SUFFIXES}
        return len({path.resolve() for path in images} - listed)

    def _classes(self) -> int | tuple[str, ...] | None:
        """Return the declared classes, or those that a file of the library `datasets` declares."""
        if self.classes is not None:
            return self.classes
        files = self._files.of_split
        first = files.get("train") or next(iter(files.values()))
        return class_names(first[0], self._columns.get("label", "label")) or None

    def _resized(self, split: str, columns: Columns) -> Columns:
        if self.image_size is None or "image" not in columns:
            return columns
        size, images = self.image_size, enumerate(columns["image"])
        resized = [
            None if one is None else resize_image(one, size, "RGB", "JPEG", f"data, split {split}, item {row}")
            for row, one in images
        ]
        return {**columns, "image": resized}


def _no_input(path: Path, table: Columns, names: Sequence[str]) -> str:
    """Return the message that no column is an input, with the columns that may be meant."""
    meant = suggested_columns(table)
    given = ", ".join(f"{role}: {theirs}" for role, theirs in meant.items()) or f"text: {names[0]}"
    return (
        f"data.columns: {path} has the columns {', '.join(names)}; none is {', '.join(INPUTS[:-1])} or {INPUTS[-1]}:"
        f" name one, such as columns: {{{given}}}, or list columns of numbers in data.features"
    )


def _lists_of_json(path: Path, columns: Columns) -> Columns:
    """Return the columns with answers, words and boxes that a CSV file holds as JSON as lists."""
    if path.suffix.lower() not in (".csv", ".tsv"):
        return columns
    return columns | {
        role: [_json_list(value, f"{path} row {row}: {role}") for row, value in enumerate(columns[role])]
        for role in LISTS
        if role in columns
    }


def _json_list(value: object, where: str) -> object:
    if not (isinstance(value, str) and value.lstrip().startswith("[")):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        raise DataError(f"{where} is {value[:40]!r}, which is no list in JSON") from None


def _folders_as_labels(names: Sequence[object]) -> Columns:
    """Return the folder of each image as its label; empty if an image is in no folder."""
    folders = [Path(str(name)).parent.name for name in names]
    return {"label": folders} if folders and all(folders) else {}


def _split_name(name: str) -> str:
    return require_split_name(split_name(name), "data.path")


def _features(path: Path, columns: Mapping[str, Sequence[Any]]) -> list[Any]:
    """Return the values of columns of numbers as one array for each row."""
    arrays = []
    for name, values in columns.items():
        try:
            numbers = np.array([np.nan if value is None else value for value in values], np.float64)
        except (TypeError, ValueError):
            row, value = next((r, v) for r, v in enumerate(values) if not _is_number(v))
            raise DataError(f"{path} row {row}: column {name!r} is {value!r}, expected a number") from None
        if (missing := np.flatnonzero(np.isnan(numbers))).size:
            raise DataError(f"{path} row {missing[0]}: column {name!r} has no number; fill it, or leave the row out")
        arrays.append(numbers)
    return list(np.stack(arrays, 1).astype(np.float32))


def _is_number(value: object) -> bool:
    return value is None or isinstance(value, (int, float))


def _image(given: object, folder: Path, where: str) -> Path | bytes | None:
    """Return an image that a row gives: encoded bytes, as `datasets` stores them too, or a path next to the table."""
    if isinstance(given, Mapping):
        given = given.get("bytes") or given.get("path")
    if given is None or isinstance(given, bytes):
        return given
    if not isinstance(given, str):
        raise DataError(f"{where}: image is {type(given).__name__}, expected the path of a file, or an encoded image")
    path = folder / Path(os.path.expandvars(given)).expanduser()
    if not path.is_file():
        raise DataError(f"{where}: the image {path} is missing")
    return path


def _image_files(columns: Columns) -> list[Path]:
    return [one for one in columns.get("image", ()) if isinstance(one, Path)]


def _page_size(columns: Columns, row: int, where: str) -> tuple[float, float]:
    """Return width and height of a page in pixels, from columns of these names or from its image."""
    if {"width", "height"} <= columns.keys():
        width, height = columns["width"][row], columns["height"][row]
        if not (_is_number(width) and _is_number(height) and width and height and min(width, height) > 0):
            raise DataError(f"{where}: width and height are {width!r} and {height!r}, expected pixels of the page")
        return float(width), float(height)
    image = columns.get("image", [None] * (row + 1))[row]
    if image is None:
        raise DataError(f"{where}: boxes in pixels need the columns width and height, or an image")
    width, height = measure_image(image.read_bytes() if isinstance(image, Path) else image, where)
    return float(width), float(height)
