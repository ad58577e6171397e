"""On-disk cache of data sets, as Arrow files that all workers of a machine memory-map.

A data set is stored in a folder named by a hash of its settings and of the contents of its source files, so that other
settings or changed sources build another folder. The card has a format number, its own hash, and the size and hash of
every table; all are verified when the data set is read. The card is written last: a folder without a card, or with one
of another format, is built again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from simfl import files
from simfl.data.base import Data, Dataset, Split
from simfl.data.io.file_hashes import FileHashes
from simfl.data.soundness import STORED, require_sound, require_split_name
from simfl.errors import DataError
from simfl.json_files import JsonObject, describe_format, is_intact, seal

TABLES = ("examples", "documents")
CARD, FORMAT = "card.json", 1  # FORMAT: version of the files; increase it when an older simfl could not read them
READING = 2  # version of the reading of images and boxes that all readers share; increase it when results change
BEFORE_BUILD: ContextVar[Callable[[str], object] | None] = ContextVar("before_build", default=None)


def load_or_build(
    cache: Path,
    name: str,
    version: int,
    data: Data,
    sources: Iterable[Path],
    build: Callable[[], Dataset],
    extra_files: Callable[[Dataset], Mapping[str, bytes]] | None = None,
) -> Dataset:
    """Load a data set from the cache, or build, check and store it.

    Args:
        cache: The cache folder.
        name: Name of the data set, the first part of the folder's name.
        version: Version of the code that builds the data set; increase it when the result changes.
        data: The component, whose settings are part of the cache key.
        sources: Files whose names and contents are part of the cache key.
        build: Builds the data set.
        extra_files: Returns further files to store, by name, such as a contact sheet.
    """
    hashes = FileHashes(cache)
    key = {
        "edition": version,
        "reading": READING,
        "settings": _settings(data),
        "sources": [[path.name, hashes.sha256(path)] for path in sources],
    }
    hashes.save()
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
    folder = cache / f"{name}-{digest[:16]}"
    if not is_stored(folder):
        if before := BEFORE_BUILD.get():
            before(name)
        dataset = build()
        require_sound(dataset, decode=STORED)
        write_dataset(folder, dataset, extra_files(dataset) if extra_files else {})
    return read_dataset(folder)


@contextmanager
def building(before: Callable[[str], object]) -> Iterator[None]:
    """Call `before` with the name of each data set that is built in the block; it may raise to prevent the build."""
    token = BEFORE_BUILD.set(before)
    try:
        yield
    finally:
        BEFORE_BUILD.reset(token)


def _settings(data: Data) -> dict[str, object]:
    return {"class": type(data).__qualname__, **asdict(data)}


def is_stored(folder: Path) -> bool:
    """Return whether a folder holds a complete data set of the current format, which may be damaged."""
    try:
        card = json.loads((folder / CARD).read_bytes())
    except FileNotFoundError:
        return False
    except (OSError, ValueError):
        return True
    return not isinstance(card, dict) or not describe_format(card.get("format"), FORMAT)


def write_dataset(folder: Path, dataset: Dataset, extra_files: Mapping[str, bytes] | None = None) -> None:
    """Write the tables, the extra files and then the card.

    Each file is replaced atomically, so two processes may write the same data set at once. DataError for a split whose
    name cannot be part of a file name.
    """
    folder.mkdir(parents=True, exist_ok=True)
    layout, stored = dict[str, list[str]](), dict[str, object]()
    for split_name, split in dataset.splits.items():
        require_split_name(split_name, "data")
        tables = {t: getattr(split, t) for t in TABLES if getattr(split, t) is not None}
        layout[split_name] = list(tables)
        for table_name, table in tables.items():
            path = folder / f"{split_name}.{table_name}.arrow"
            files.write(path, partial(_write_table, table))
            stored[path.name] = {"bytes": path.stat().st_size, "sha256": _sha256(path)}
    for name, content in (extra_files or {}).items():
        files.write(folder / name, partial(_write_bytes, content))
    card = {"name": dataset.name, "sha256": dataset.sha256, "splits": layout, "card": dict(dataset.card)}
    text = json.dumps(seal({**card, "files": stored}, FORMAT), indent=1, ensure_ascii=False).encode()
    files.write(folder / CARD, partial(_write_bytes, text))
    files.sync_folder(folder)


def _write_bytes(content: bytes, file: BinaryIO) -> None:
    file.write(content)


def _write_table(table: pa.Table, file: BinaryIO) -> None:
    with pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)


def read_dataset(folder: Path) -> Dataset:
    """Read the data set that `write_dataset` stored in a folder; DataError if a file is missing or was altered."""
    card = _read_card(folder)
    _verify_tables(folder, card["files"])
    try:
        splits = {
            name: Split(**{table: _read_table(folder / f"{name}.{table}.arrow") for table in tables})
            for name, tables in card["splits"].items()
        }
    except (OSError, ValueError, pa.ArrowException) as error:
        raise _damaged(folder, str(error).splitlines()[0]) from error
    splits = {name: split.with_sha256(card["sha256"]) for name, split in splits.items()}
    return Dataset(card["name"], splits, card["sha256"], card["card"], folder)


def _read_card(folder: Path) -> JsonObject:
    """Read the card. DataError if it is missing, was altered or has another format."""
    try:
        card: JsonObject = json.loads((folder / CARD).read_bytes())
    except (OSError, ValueError) as error:
        raise _damaged(folder, f"{CARD}: {error}") from error
    if not isinstance(card, dict):
        raise _damaged(folder, f"{CARD}: a mapping was expected")
    if difference := describe_format(card.get("format"), FORMAT):
        raise DataError(f"{folder / CARD}: {difference}; delete the folder, and it is built again")
    if not is_intact(card):
        raise _damaged(folder, f"{CARD} does not match its hash")
    return card


def _verify_tables(folder: Path, stored: Mapping[str, Mapping[str, object]]) -> None:
    """Compare every table with its size and hash, before it is mapped. DataError if one is missing or was altered."""
    hashes = FileHashes(folder.parent)
    for name, expected in stored.items():
        path = folder / name
        try:
            size, digest = path.stat().st_size, hashes.sha256(path)
        except OSError as error:
            raise _damaged(folder, f"{name}: {error.strerror or error}") from error
        if size != expected["bytes"]:
            raise _damaged(folder, f"{name} has {size} bytes instead of {expected['bytes']}")
        if digest != expected["sha256"]:
            raise _damaged(folder, f"{name} does not match its hash")
    hashes.save()


def _damaged(folder: Path, reason: str) -> DataError:
    return DataError(f"{folder}: this cached data set is damaged, delete the folder ({reason})")


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read_table(path: Path) -> pa.Table:
    return pa.ipc.open_file(pa.memory_map(str(path))).read_all()


def content_sha256(splits: Mapping[str, Split], also: str = "", exclude: Iterable[str] = ("image",)) -> str:
    """Return a hash of all columns that does not depend on how they are chunked.

    Args:
        splits: The splits by name.
        also: Further text to hash, for what no column contains.
        exclude: Columns to leave out; by default encoded images, whose bytes depend on Pillow's version.
    """
    digest = hashlib.sha256(also.encode())
    excluded = set(exclude)
    for split_name in sorted(splits):
        for table_name in TABLES:
            table = getattr(splits[split_name], table_name)
            for column in sorted(set(table.column_names) - excluded) if table is not None else ():
                digest.update(json.dumps([split_name, table_name, column, table.num_rows]).encode())
                for part in _column_bytes(table[column]):
                    digest.update(part)
    return digest.hexdigest()


def _column_bytes(values: pa.ChunkedArray | pa.Array) -> Iterator[bytes | memoryview]:
    """Yield the null mask, the lengths and the values of a column as bytes."""
    array = pa.concat_arrays(values.chunks) if isinstance(values, pa.ChunkedArray) and values.num_chunks else values
    if array.null_count:
        yield np.packbits(array.is_null().to_numpy(zero_copy_only=False)).tobytes()
        array = array.drop_null()
    if len(array) == 0:
        return
    if pa.types.is_string(array.type) or pa.types.is_binary(array.type):
        yield pc.binary_length(array).to_numpy(zero_copy_only=False).astype(np.int64).tobytes()
        ends = np.frombuffer(array.buffers()[1], np.int32)[array.offset : array.offset + len(array) + 1]
        yield memoryview(array.buffers()[2] or b"")[ends[0] : ends[-1]]
    elif pa.types.is_list(array.type):
        yield pc.list_value_length(array).to_numpy(zero_copy_only=False).astype(np.int64).tobytes()
        yield from _column_bytes(array.flatten())
    elif pa.types.is_fixed_size_list(array.type):
        yield from _column_bytes(array.flatten())
    else:
        yield array.to_numpy(zero_copy_only=False).tobytes()
