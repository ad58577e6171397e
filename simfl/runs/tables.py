"""Tables of rows in memory, as bytes and in Parquet files.

A row is a dict of ints, floats, strings, booleans, bytes and lists of these. Rows need not have the same keys: a value
that a row lacks is null. Arrow is used here, in `data` and in `codecs` only.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from simfl import files
from simfl.aggregation.columns import Columns, Scalar
from simfl.errors import RunError

Table: TypeAlias = pa.Table
TableRow = dict[str, Any]  # column -> value

TIMES = "times"  # table of runs with virtual time; others have none
TABLES = ("rounds", "ledger", "clients", "evaluations", "samples", "scores", TIMES)
VIRTUAL_TIME = "virtual_seconds"  # column of `rounds`: virtual time at the end of the round


def warm_up() -> None:
    """Make Arrow import pandas, which takes 0.2 s, at a moment when the process would wait anyway."""
    pa.array([])


def table(rows: Iterable[Mapping[str, object]] | pa.Table) -> pa.Table:
    """Return the rows as an Arrow table; columns are in the order of their first appearance."""
    if isinstance(rows, pa.Table):
        return rows
    if isinstance(rows, Columns):
        return pa.table({name: _array(value, len(rows)) for name, value in rows.values.items()})
    rows = list(rows)
    names = list(dict.fromkeys(name for row in rows for name in row))
    return pa.table({name: pa.array([row.get(name) for row in rows]) for name in names})


def _array(value: Scalar | np.ndarray, length: int) -> pa.Array:
    if isinstance(value, np.ndarray):
        return pa.array(value, from_pandas=True)  # NaN becomes null
    return pa.repeat(pa.scalar(None if value != value else value, pa.scalar(value).type), length)


def table_bytes(content: pa.Table) -> bytes:
    """Return a table as the content of a Parquet file."""
    buffer = pa.BufferOutputStream()
    pq.write_table(content.combine_chunks(), buffer)
    found: bytes = buffer.getvalue().to_pybytes()
    return found


def from_bytes(path: Path, content: bytes) -> pa.Table:
    """Read the content of a Parquet file; `path` names it in errors. RunError if it is damaged."""
    return _read(path, pa.BufferReader(content))


def concat(found: Iterable[pa.Table]) -> pa.Table:
    """Join tables. Columns that one lacks are null; a column of ints and floats has floats."""
    found = list(found)
    return pa.concat_tables(found, promote_options="permissive") if found else pa.table({})


def write(path: Path, rows: Iterable[Mapping[str, object]]) -> None:
    """Write the rows as one Parquet file."""
    files.write(path, lambda file: pq.write_table(table(rows), file))


def write_table(path: Path, content: pa.Table) -> None:
    """Write a table as one Parquet file."""
    files.write(path, lambda file: pq.write_table(content, file))


def read(path: Path) -> pa.Table:
    """Read the table in a Parquet file. RunError if the file is missing or damaged."""
    return _read(path, path)


def _read(path: Path, source: Path | pa.BufferReader) -> pa.Table:
    try:
        with pq.ParquetFile(source) as file:  # read_table imports pyarrow.dataset, which takes 0.1 s and pandas
            return file.read()
    except FileNotFoundError as error:
        raise RunError(f"{path}: there is no such table") from error
    except (pa.ArrowException, OSError) as error:
        raise RunError(f"{path}: not a readable table: {str(error).splitlines()[0]}") from error


def rows(path: Path) -> list[TableRow]:
    """Read the rows of a Parquet file."""
    return read(path).to_pylist()


def total(content: pa.Table, column: str) -> int:
    """Return the sum of a column of integers; a null value, or a table without the column, counts as 0."""
    return int(pc.sum(content[column]).as_py() or 0) if column in content.column_names else 0


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
