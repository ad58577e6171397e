"""Your own files: CSV, TSV, JSON lines, JSON and Parquet, whose columns are named in the experiment.

A column has one of the names in `ROLES`, or is given that name by `columns`. Every other column is kept, to partition
or to group by. Examples are texts, images, numbers, or questions about documents, by the columns that there are.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from simfl.constraints import Fraction, PositiveInt
from simfl.data.base import Data, Dataset
from simfl.data.io import records
from simfl.data.io.arrow_store import load_or_build
from simfl.data.io.images import resize_image
from simfl.data.io.own_documents import flat_boxes
from simfl.data.readers.own import Own
from simfl.data.soundness import require_split_name
from simfl.errors import ConfigError, DataError, nearest
from simfl.images import measure_image
from simfl.seeds import rng

VERSION = 1
SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet")
SPLITS = {
    "training": "train",
    "val": "valid",
    "validation": "valid",
    "dev": "valid",
    "eval": "valid",
    "testing": "test",
}
INPUTS = ("text", "image", "features", "question", "words")  # of which an example has at least one
ROLES = (
    *INPUTS,
    "label",
    "answers",
    "boxes",
    "id",
    "field",
    "document",
    "provider",
    "client",
    "group",
    "split",
    "domain",
)
TEXTS = ("text", "image", "question", "answers", "id", "field", "document", "provider", "split", "domain")
Columns = dict[str, list[Any]]
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
        sources = [*self._files().values(), *(path for columns in tables.values() for path in _image_files(columns))]
        return load_or_build(cache, "table", VERSION, self, sources, lambda: self._build(tables))

    def preview(self, cache: Path) -> Dataset:
        """Read the files without checking their values; nothing is stored."""
        return self._build(self._tables())

    def _tables(self) -> dict[str, Columns]:
        """Return the columns of each split, by simfl's names."""
        for role in self.columns:
            if role not in ROLES:
                raise ConfigError(f"data.columns: unknown {role!r}; {nearest(role, ROLES)}")
        if self.valid + self.test >= 1:
            raise ConfigError(f"data.valid, data.test: {self.valid}, {self.test} given, their sum must be below 1")
        found = {split: self._renamed(path, self._read(path)) for split, path in self._files().items()}
        if list(found) == [""]:
            found = self._divided(found[""])
        if "train" not in found:
            raise DataError(f"data.path: there is no split train; found: {', '.join(found)}")
        return found

    def _files(self) -> dict[str, Path]:
        """Return the file of each split; a single file has the name of no split."""
        if isinstance(self.path, Mapping):
            named = {str(split): records.resolve_file(str(path)) for split, path in self.path.items()}
        else:
            top = Path(os.path.expandvars(self.path)).expanduser()
            if not top.is_dir():
                return {"": records.resolve_file(self.path)}
            paths = sorted(path for path in top.iterdir() if path.suffix.lower() in SUFFIXES and path.is_file())
            if not paths:
                raise DataError(f"data.path: {top} has no file of {', '.join(SUFFIXES)}")
            named = {path.stem: path for path in paths}
            if len(named) < len(paths):
                raise DataError(f"data.path: {top} has several files of one name; give data.path: {{split: file}}")
        found: dict[str, Path] = {}
        for name, path in named.items():
            split = _split_name(name, "data.path")
            if split in found:
                raise DataError(f"data.path: {found[split]} and {path} are both the split {split}")
            found[split] = path
        return found

    def _read(self, path: Path) -> Columns:
        """Return the columns of a file by its own names."""
        suffix = path.suffix.lower()
        if suffix not in SUFFIXES:
            raise DataError(f"data.path: {path}: unknown ending {suffix!r}; {nearest(suffix, SUFFIXES)}")
        try:
            if suffix == ".parquet":
                return _lists(path, pq.read_table(path))
            if suffix in (".csv", ".tsv"):
                return _lists(path, self._read_csv(path, "\t" if suffix == ".tsv" else ","))
        except (pa.ArrowException, OSError, ValueError) as error:
            raise DataError(f"{path}: {str(error).splitlines()[0]}") from error
        rows = [row for _, row in (records.read_json_lines(path) if suffix != ".json" else _json_rows(path))]
        names = dict.fromkeys(name for row in rows for name in row)
        return {name: [row.get(name) for row in rows] for name in names}

    def _read_csv(self, path: Path, usual: str) -> pa.Table:
        delimiter = self.delimiter or usual
        if len(delimiter) != 1:
            raise ConfigError(f"data.delimiter: {delimiter!r} given; allowed: one character")
        texts = {self.columns.get(role, role): pa.string() for role in TEXTS}
        table = pa_csv.read_csv(
            path,
            parse_options=pa_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
            convert_options=pa_csv.ConvertOptions(column_types=texts, strings_can_be_null=False),
        )
        names = table.column_names
        if len(names) == 1 and (other := next((one for one in ";\t|," if one in names[0]), "")):
            raise DataError(f"{path}: one column, {names[0]!r}; give data.delimiter: {other!r}")
        return table

    def _renamed(self, path: Path, table: Columns) -> Columns:
        """Return the columns by simfl's names: named roles, features, and all others by their own names."""
        names = list(table)
        for role, theirs in self.columns.items():
            if theirs not in names:
                raise ConfigError(f"data.columns.{role}: {path} has no column {theirs!r}; {nearest(theirs, names)}")
        for name in self.features:
            if name not in names:
                raise ConfigError(f"data.features: {path} has no column {name!r}; {nearest(name, names)}")
        used = {*self.columns.values(), *self.features}
        found = {name: values for name, values in table.items() if name not in used}
        found |= {role: table[theirs] for role, theirs in self.columns.items()}
        if self.features:
            found["features"] = _features(path, {name: table[name] for name in self.features})
        if not set(INPUTS) & found.keys():
            inputs = f"{', '.join(INPUTS[:-1])} or {INPUTS[-1]}"
            raise ConfigError(
                f"data.columns: {path} has the columns {', '.join(names)}; none is {inputs}: name one, such as columns:"
                f" {{text: {names[0]}}}, or list columns of numbers in data.features"
            )
        return self._with_pages(path, found)

    def _with_pages(self, path: Path, columns: Columns) -> Columns:
        """Return the columns with images as paths or bytes, and boxes as shares of the page."""
        if "image" in columns:
            where = (f"{path} row {row}" for row in range(len(columns["image"])))
            columns["image"] = [_image(one, path.parent, at) for one, at in zip(columns["image"], where, strict=True)]
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
            of_name = {name: _split_name(str(name), "data.path") for name in dict.fromkeys(given)}
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
        return Dataset("table", made.splits, made.sha256, card)

    def _classes(self) -> int | tuple[str, ...] | None:
        """Return the declared classes, or those that a Parquet file of the library `datasets` declares."""
        if self.classes is not None:
            return self.classes
        files = self._files()
        return class_names(files.get("train") or next(iter(files.values())), self.columns.get("label", "label")) or None

    def _resized(self, split: str, columns: Columns) -> Columns:
        if self.image_size is None or "image" not in columns:
            return columns
        size, images = self.image_size, enumerate(columns["image"])
        resized = [
            None if one is None else resize_image(one, size, "RGB", "JPEG", f"data, split {split}, item {row}")
            for row, one in images
        ]
        return {**columns, "image": resized}


def _lists(path: Path, table: pa.Table) -> Columns:
    """Return the columns of a table as lists; DataError if two have one name."""
    names = table.column_names
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise DataError(f"{path}: several columns are called {twice[0]!r}; rename them")
    columns: Columns = table.to_pydict()
    return columns


def _json_rows(path: Path) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield the records of a JSON file: a list of mappings, or a mapping with one such list."""
    content = records.read_json(path)
    if isinstance(content, dict):
        lists = {str(name): value for name, value in content.items() if isinstance(value, list) and value}
        of_rows = [name for name, value in lists.items() if isinstance(value[0], dict)]
        if len(of_rows) != 1:
            known = ", ".join(map(str, content))
            raise DataError(
                f"{path}: expected a list of examples, or a mapping with one such list; its fields: {known}"
            )
        yield from records.read_json_list(path, of_rows[0])
        return
    yield from records.read_json_list(path)


def _split_name(name: str, where: str) -> str:
    split = SPLITS.get(name.lower(), name)
    require_split_name(split, where)
    return split


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


def class_names(path: Path, column: str) -> tuple[str, ...]:
    """Return the names of the classes that `datasets` stores in a Parquet file; empty without them."""
    if path.suffix.lower() != ".parquet":
        return ()
    stored = (pq.read_schema(path).metadata or {}).get(b"huggingface")
    try:
        features = json.loads(stored)["info"]["features"] if stored else {}
        return tuple(map(str, features.get(column, {}).get("names") or ()))
    except (ValueError, KeyError, TypeError, AttributeError):
        return ()
