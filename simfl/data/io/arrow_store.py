"""Data sets kept on disk once read or built, as Arrow files that all workers of a machine map into memory.

A data set lies in a folder named by a hash of what it was made from, so other settings or changed sources build another
one. Its card is written last: a folder without a card is unfinished and is built again.
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
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from simfl import files
from simfl.data.base import Data, Dataset, Split
from simfl.errors import DataError

TABLES = ("examples", "documents")
BEFORE_BUILD: ContextVar[Callable[[str], object] | None] = ContextVar("before_build", default=None)


def stored(
    cache: Path,
    name: str,
    edition: int,
    data: Data,
    sources: Iterable[Path],
    build: Callable[[], Dataset],
    beside: Callable[[Dataset], Mapping[str, bytes]] | None = None,
) -> Dataset:
    """The data set made by these settings from these source files: read from the cache, else built and kept there.

    `edition` is raised whenever the code that builds it changes what it makes. `beside` makes files by name that are
    kept with the tables, for people to look at.
    """
    made_from = {"edition": edition, "settings": _settings(data), "sources": [_stamp(path) for path in sources]}
    key = hashlib.sha256(json.dumps(made_from, sort_keys=True).encode()).hexdigest()
    folder = cache / f"{name}-{key[:16]}"
    if not (folder / "card.json").exists():
        if before := BEFORE_BUILD.get():
            before(name)
        built = build()
        write(folder, built, beside(built) if beside else {})
    return read(folder)


@contextmanager
def building(before: Callable[[str], object]) -> Iterator[None]:
    """Call `before` with the name of each data set that is built in the block; it may raise to prevent the build."""
    token = BEFORE_BUILD.set(before)
    try:
        yield
    finally:
        BEFORE_BUILD.reset(token)


def _settings(data: Data) -> dict[str, Any]:
    return {"class": type(data).__qualname__, **asdict(data)}


def _stamp(path: Path) -> list[object]:
    status = path.stat()
    return [path.name, status.st_size, status.st_mtime_ns]


def write(folder: Path, dataset: Dataset, beside: Mapping[str, bytes] | None = None) -> None:
    """Writes the tables, the files beside them, then the card.

    Two processes may do it at once: each file appears whole.
    """
    folder.mkdir(parents=True, exist_ok=True)
    layout = {}
    for split_name, split in dataset.splits.items():
        tables = {t: getattr(split, t) for t in TABLES if getattr(split, t) is not None}
        layout[split_name] = list(tables)
        for table_name, table in tables.items():
            files.write(folder / f"{split_name}.{table_name}.arrow", partial(_write_table, table))
    for name, content in (beside or {}).items():
        files.write(folder / name, partial(_write_bytes, content))
    card = {"name": dataset.name, "sha256": dataset.sha256, "splits": layout, "card": dict(dataset.card)}
    text = json.dumps(card, indent=1, ensure_ascii=False).encode()
    files.write(folder / "card.json", partial(_write_bytes, text))
    files.sync_folder(folder)


def _write_bytes(content: bytes, file: Any) -> None:
    file.write(content)


def _write_table(table: pa.Table, file: Any) -> None:
    with pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)


def read(folder: Path) -> Dataset:
    """The data set in a folder that `write` filled; DataError if a file there is missing or broken."""
    try:
        card = json.loads((folder / "card.json").read_bytes())
        splits = {
            name: Split(**{table: _read_table(folder / f"{name}.{table}.arrow") for table in tables}).of(card["sha256"])
            for name, tables in card["splits"].items()
        }
        return Dataset(card["name"], splits, card["sha256"], card["card"], folder)
    except (OSError, ValueError, KeyError, pa.ArrowException) as error:
        raise DataError(f"{folder}: this cached data set is damaged, delete the folder ({error})") from error


def _read_table(path: Path) -> pa.Table:
    return pa.ipc.open_file(pa.memory_map(str(path))).read_all()


def content_sha256(splits: Mapping[str, Split], also: str = "", exclude: Iterable[str] = ("image",)) -> str:
    """A hash of all columns but encoded images, whatever their chunks; `also` adds what is in no column."""
    digest = hashlib.sha256(also.encode())
    left_out = set(exclude)
    for split_name in sorted(splits):
        for table_name in TABLES:
            table = getattr(splits[split_name], table_name)
            for column in sorted(set(table.column_names) - left_out) if table is not None else ():
                digest.update(json.dumps([split_name, table_name, column, table.num_rows]).encode())
                for part in _parts(table[column]):
                    digest.update(part)
    return digest.hexdigest()


def _parts(values: pa.ChunkedArray | pa.Array) -> Iterator[bytes | memoryview]:
    """The values as bytes: what is null, how long each is, and what it holds."""
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
        yield from _parts(array.flatten())
    elif pa.types.is_fixed_size_list(array.type):
        yield from _parts(array.flatten())
    else:
        yield array.to_numpy(zero_copy_only=False).tobytes()
