"""Tables of rows, written in parts while a run is in progress and joined when it ends.

A row is a dict of ints, floats, strings, booleans, bytes and lists of these. Rows need not have the same keys: a value
that a row lacks is null. Arrow is used here, in `data` and in `codecs` only.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from simfl import files
from simfl.errors import RunError

Table: TypeAlias = pa.Table
TableRow = dict[str, Any]  # column -> value


def warm_up() -> None:
    """Make Arrow import pandas, which takes 0.2 s, at a moment when the process would wait anyway."""
    pa.array([])


def table(rows: Iterable[Mapping[str, object]]) -> pa.Table:
    """Return the rows as an Arrow table; columns are in the order of their first appearance."""
    rows = list(rows)
    names = list(dict.fromkeys(name for row in rows for name in row))
    return pa.table({name: pa.array([row.get(name) for row in rows]) for name in names})


def write_part(folder: Path, name: str, index: int, rows: Iterable[Mapping[str, object]]) -> None:
    """Write part `index` of the table `name` and sync it to the disk; an older one is replaced."""
    path = _part(folder, name, index)
    files.make_folder(path.parent)
    files.write(path, lambda file: pq.write_table(table(rows), file))
    files.sync_folder(path.parent)


def write(path: Path, rows: Iterable[Mapping[str, object]]) -> None:
    """Write the rows as one Parquet file."""
    files.write(path, lambda file: pq.write_table(table(rows), file))


def drop_after(folder: Path, name: str, index: int) -> None:
    """Delete the parts after `index`: those of rounds that no checkpoint covers."""
    for path in parts(folder, name):
        if int(path.stem) > index:
            path.unlink()


def parts(folder: Path, name: str) -> list[Path]:
    """Return the parts of a table in the order of their index."""
    found = [path for path in (folder / name).glob("*.parquet") if path.stem.isdigit()]
    return sorted(found, key=lambda path: int(path.stem))


def join(folder: Path, name: str, target: Path) -> None:
    """Write all parts of a table as one Parquet file."""
    whole = joined(folder, name)
    files.write(target, lambda file: pq.write_table(whole, file))
    files.sync_folder(target.parent)


def joined(folder: Path, name: str) -> pa.Table:
    """Return all parts as one table. Columns that a part lacks are null; a column of ints and floats has floats."""
    found = [read(path) for path in parts(folder, name)]
    return pa.concat_tables(found, promote_options="permissive") if found else pa.table({})


def read(path: Path) -> pa.Table:
    """Read the table in a Parquet file. RunError if the file is missing or damaged."""
    try:
        return pq.read_table(path, partitioning=None)
    except FileNotFoundError as error:
        raise RunError(f"{path}: there is no such table") from error
    except (pa.ArrowException, OSError) as error:
        raise RunError(f"{path}: not a readable table: {str(error).splitlines()[0]}") from error


def rows(path: Path) -> list[TableRow]:
    """Read the rows of a Parquet file."""
    return read(path).to_pylist()


def where(content: pa.Table, **values: object) -> pa.Table:
    """Return the rows with these values in these columns; no rows of a table without such columns."""
    for name, value in values.items():
        if name not in content.column_names:
            return content.slice(0, 0)
        content = content.filter(pc.equal(content[name], value))
    return content


def sha256(content: pa.Table, exclude: Collection[str] = ()) -> str:
    """Hash the rows in their order, independently of column order, chunks and compression.

    Args:
        content: The table. A null value counts as an absent one.
        exclude: Columns that are left out, such as clock times.
    """
    names = sorted(set(content.column_names) - set(exclude))
    digest = hashlib.sha256()
    for row in content.select(names).to_pylist():
        present = {name: value for name, value in row.items() if value is not None}
        digest.update(json.dumps(present, default=bytes.hex).encode() + b"\n")
    return digest.hexdigest()


def _part(folder: Path, name: str, index: int) -> Path:
    return folder / name / f"{index:06d}.parquet"
