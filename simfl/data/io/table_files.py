"""Files that hold a user's table, and their columns as lists.

FILE                               CSV, TSV, JSON lines, JSON, Parquet, or an Arrow file
FOLDER/train.csv, valid.csv        one file for each split, or shards such as train-00000-of-00002.parquet
FOLDER/train/*.csv                 one folder for each split; the folder may be called data
FOLDER/metadata.csv                images and a table with the column `file_name`, in FOLDER or in FOLDER/train, …
FOLDER/state.json                  saved by `save_to_disk` of the library `datasets`, with dataset_dict.json for splits
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from simfl.data.base import split_name
from simfl.data.io import records
from simfl.data.soundness import require_split_name
from simfl.errors import ConfigError, DataError, nearest

SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet", ".arrow")
METADATA = tuple(f"metadata{suffix}" for suffix in SUFFIXES[:-1])
FILE_NAME = "file_name"  # column of metadata that names the image, as in the library `datasets`
SHARD = re.compile(r"[-_.]\d+-of-\d+$")
SPLIT_FOLDERS = ("train", "training", "valid", "validation", "val", "dev", "eval", "test", "testing", "unseen")
Columns = dict[str, list[Any]]


@dataclass(frozen=True)
class TableFiles:
    """The files of each split; the only key of a table that is not divided yet is empty."""

    kind: Literal["files", "images", "saved"]
    of_split: Mapping[str, tuple[Path, ...]]

    @property
    def paths(self) -> list[Path]:
        """Return all files."""
        return [path for paths in self.of_split.values() for path in paths]


@dataclass(frozen=True)
class CsvFormat:
    """Settings for CSV files."""

    delimiter: str | None = None  # None: a comma, or a tab in TSV
    texts: tuple[str, ...] = ()  # columns that stay text where they look like numbers


def find_table_files(path: str | Mapping[str, str]) -> TableFiles:
    """Return the files of each split of a file, a folder, or a mapping from splits to files.

    Raises:
        DataError: There is no such file, or two files of one split that are not its shards.
    """
    if isinstance(path, Mapping):
        named = [(str(name), (records.resolve_file(str(file)),)) for name, file in path.items()]
        return TableFiles("files", _by_split(named))
    top = Path(os.path.expandvars(path)).expanduser()
    if not top.is_dir():
        return TableFiles("files", {"": (records.resolve_file(path),)})
    if is_saved(top):
        return TableFiles("saved", {split: tuple(files) for split, files in saved_files(top).items()})
    found = _tables_of(top)
    if not any(split_name(name) == "train" for name, _ in found) and (images := metadata_files(top)):
        return TableFiles("images", images)
    if not found:
        raise DataError(
            f"data.path: {top} has no file of {', '.join(SUFFIXES)}; images in folders named by their class are read"
            " by data: {name: image_folder}"
        )
    return TableFiles("files", _by_split(found))


def metadata_files(top: Path) -> dict[str, tuple[Path, ...]]:
    """Return the metadata of an image folder by split; an empty mapping without any."""
    if own := _metadata(top):
        return {"": (own,)}
    folders = [folder for folder in sorted(top.iterdir()) if folder.is_dir() and folder.name in SPLIT_FOLDERS]
    return _by_split([(folder.name, (file,)) for folder in folders if (file := _metadata(folder))])


def _metadata(folder: Path) -> Path | None:
    found = [folder / name for name in METADATA if (folder / name).is_file()]
    if len(found) > 1:
        raise DataError(f"data.path: {found[0]} and {found[1].name} both describe the images; remove one of them")
    return found[0] if found else None


def _tables_of(top: Path) -> list[tuple[str, tuple[Path, ...]]]:
    """Return the name and the files of each table in a folder, in its folders of splits, or in its folder `data`."""
    shards: dict[tuple[str, str], list[Path]] = {}
    for path in _tables_in(top):
        shards.setdefault((SHARD.sub("", path.stem), path.stem if not SHARD.search(path.stem) else ""), []).append(path)
    found = [(name, tuple(paths)) for (name, _), paths in shards.items()]
    for folder in sorted(top.iterdir()):
        if folder.is_dir() and folder.name in SPLIT_FOLDERS and (paths := _tables_in(folder)):
            found.append((folder.name, tuple(paths)))
    return found if found or not (top / "data").is_dir() else _tables_of(top / "data")


def _tables_in(folder: Path) -> list[Path]:
    return sorted(
        path
        for path in folder.iterdir()
        if path.suffix.lower() in SUFFIXES and path.is_file() and path.name not in METADATA
    )


def _by_split(named: Iterable[tuple[str, tuple[Path, ...]]]) -> dict[str, tuple[Path, ...]]:
    found: dict[str, tuple[Path, ...]] = {}
    for name, paths in named:
        split = split_name(name)
        require_split_name(split, "data.path")
        if split in found:
            raise DataError(f"data.path: {found[split][0]} and {paths[0]} are both the split {split}")
        found[split] = paths
    return found


def is_saved(folder: Path) -> bool:
    """Return whether a folder was written by `save_to_disk` of the library `datasets`."""
    return (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file()


def saved_files(root: Path) -> dict[str, list[Path]]:
    """Return the Arrow files of each split that `save_to_disk` wrote, in order.

    Raises:
        DataError: A file is missing, a selection of rows was saved, or there is no split train.
    """
    listing = records.find(root, "dataset_dict.json")
    names = records.get_texts(str(listing), records.read_json_mapping(listing), "splits") if listing else [""]
    found = {}
    for name in names:
        split = split_name(name) if name else "train"
        require_split_name(split, str(listing))
        if split in found:
            raise DataError(f"{listing}: {name} is a second split {split}; remove one of them")
        path = records.require(root / name, "state.json")
        state = records.read_json_mapping(path)
        if state.get("_indices_data_files") or state.get("_indices_files"):
            raise DataError(f"{root / name}: saved with a selection of rows; call flatten_indices() and save again")
        listed = records.as_list(str(path), state.get("_data_files") or [], "_data_files")
        entries = [records.as_mapping(str(path), entry) for entry in listed]
        files = [records.get_text(str(path), entry, "filename") for entry in entries]
        found[split] = [_listed_file(root / name, file, str(path)) for file in files]
    if not found.get("train"):
        raise DataError(f"data.path: {root} has no split train")
    return found


def _listed_file(folder: Path, name: str, where: str) -> Path:
    """Return the path of a file that `state.json` lists; DataError if it is elsewhere or missing."""
    path = records.inside(folder, name, where)
    if not path.is_file():
        raise DataError(f"{path} is missing, but {where} lists it")
    return path


def read_stream(path: Path) -> pa.Table:
    """Return the table of an Arrow stream, every value of which is checked."""
    try:
        table = pa.ipc.open_stream(pa.memory_map(str(path))).read_all()
        table.validate(full=True)  # a wrong offset would end the process when the values are read
    except (OSError, ValueError, pa.ArrowException) as error:
        raise DataError(f"{path}: not a readable Arrow stream ({str(error).splitlines()[0]})") from error
    return table


def read_columns(paths: Sequence[Path], csv: CsvFormat) -> Columns:
    """Return the columns of the shards of a split, one after another.

    Raises:
        DataError: A file cannot be read, or its columns differ from those of the first.
    """
    first, *others = (_read(path, csv) for path in paths)
    for path, more in zip(paths[1:], others, strict=True):
        if more.keys() != first.keys():
            raise DataError(f"{path}: its columns are {', '.join(more)}, those of {paths[0]} {', '.join(first)}")
        for name, values in first.items():
            values += more[name]
    return first


def _read(path: Path, csv: CsvFormat) -> Columns:
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise DataError(f"data.path: {path}: unknown ending {suffix!r}; {nearest(suffix, SUFFIXES)}")
    try:
        if suffix == ".parquet":
            return _lists(path, pq.read_table(path))
        if suffix == ".arrow":
            return _lists(path, read_stream(path))
        if suffix in (".csv", ".tsv"):
            return _lists(path, _read_csv(path, csv, "\t" if suffix == ".tsv" else ","))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DataError(f"{path}: {str(error).splitlines()[0]}") from error
    rows = [row for _, row in (records.read_json_lines(path) if suffix != ".json" else _json_rows(path))]
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def _read_csv(path: Path, csv: CsvFormat, usual: str) -> pa.Table:
    delimiter = csv.delimiter or usual
    if len(delimiter) != 1:
        raise ConfigError(f"data.delimiter: {delimiter!r} given; allowed: one character")
    table = pa_csv.read_csv(
        path,
        parse_options=pa_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
        convert_options=pa_csv.ConvertOptions(
            column_types=dict.fromkeys(csv.texts, pa.string()), strings_can_be_null=False
        ),
    )
    names = table.column_names
    if len(names) == 1 and (other := next((one for one in ";\t|," if one in names[0]), "")):
        raise DataError(f"{path}: one column, {names[0]!r}; give data.delimiter: {other!r}")
    return table


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


def class_names(path: Path, column: str) -> tuple[str, ...]:
    """Return the names of the classes that `datasets` stores with a Parquet or Arrow file; empty without them."""
    try:
        features = _stored_features(path)
        return tuple(map(str, features.get(column, {}).get("names") or ()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return ()


def _stored_features(path: Path) -> Any:
    if path.suffix.lower() == ".parquet":
        stored = (pq.read_schema(path).metadata or {}).get(b"huggingface")
        return json.loads(stored)["info"]["features"] if stored else {}
    if path.suffix.lower() == ".arrow":
        return json.loads((path.parent / "dataset_info.json").read_bytes()).get("features") or {}
    return {}
