"""Tables of rows, written as parts while a run goes on and joined at its end. No other file but data/ knows Arrow.

A row is a dict of ints, floats, strings, booleans, bytes and lists of these. Rows need not have the same keys: what a
row lacks is null.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from simfl import files
from simfl.errors import RunError

Row = Mapping[str, object]


def wake() -> None:
    """Arrow imports pandas, a fifth of a second, before it makes its first array: to be called where there is time."""
    pa.array([])


def table(rows: Iterable[Row]) -> pa.Table:
    """The rows as an Arrow table; columns stand in the order of their first appearance."""
    rows = list(rows)
    names = list(dict.fromkeys(name for row in rows for name in row))
    return pa.table({name: pa.array([row.get(name) for row in rows]) for name in names})


def write_part(folder: Path, name: str, index: int, rows: Iterable[Row]) -> None:
    """Part `index` of the table `name`, whole and on the disk when this returns; an older one is replaced."""
    path = _part(folder, name, index)
    files.make_folder(path.parent)
    files.write(path, lambda file: pq.write_table(table(rows), file))
    files.sync_folder(path.parent)


def write(path: Path, rows: Iterable[Row]) -> None:
    """The rows as one Parquet file."""
    files.write(path, lambda file: pq.write_table(table(rows), file))


def drop_after(folder: Path, name: str, index: int) -> None:
    """Deletes the parts that come after `index`: those of rounds that no commit holds."""
    for path in parts(folder, name):
        if int(path.stem) > index:
            path.unlink()


def parts(folder: Path, name: str) -> list[Path]:
    """The parts of a table in the order of their index."""
    found = [path for path in (folder / name).glob("*.parquet") if path.stem.isdigit()]
    return sorted(found, key=lambda path: int(path.stem))


def join(folder: Path, name: str, target: Path) -> None:
    """All parts as one Parquet file."""
    whole = joined(folder, name)
    files.write(target, lambda file: pq.write_table(whole, file))
    files.sync_folder(target.parent)


def joined(folder: Path, name: str) -> pa.Table:
    """All parts as one table. A column that a part lacks is null there; one of ints and floats is of floats."""
    found = [read(path) for path in parts(folder, name)]
    return pa.concat_tables(found, promote_options="permissive") if found else pa.table({})


def read(path: Path) -> pa.Table:
    """The table in a Parquet file; `.to_pandas()` and `.to_pylist()` lead on. RunError if it is missing or broken."""
    try:
        return pq.read_table(path, partitioning=None)
    except FileNotFoundError as error:
        raise RunError(f"{path}: no such table") from error
    except (pa.ArrowException, OSError) as error:
        raise RunError(f"{path}: not a readable table: {str(error).splitlines()[0]}") from error


def rows(path: Path) -> list[dict[str, object]]:
    """The rows of a Parquet file."""
    return read(path).to_pylist()


def where(content: pa.Table, **values: object) -> pa.Table:
    """The rows that have these values in these columns; none of a table without such columns."""
    for name, value in values.items():
        if name not in content.column_names:
            return content.slice(0, 0)
        content = content.filter(pc.equal(content[name], value))
    return content


def sha256(content: pa.Table, exclude: Collection[str] = ()) -> str:
    """A hash of the rows in their order, whatever the order of columns, the chunks or the compression.

    Null is the same as absent. `exclude` names columns left out, such as clock times.
    """
    names = sorted(set(content.column_names) - set(exclude))
    digest = hashlib.sha256()
    for row in content.select(names).to_pylist():
        present = {name: value for name, value in row.items() if value is not None}
        digest.update(json.dumps(present, default=bytes.hex).encode() + b"\n")
    return digest.hexdigest()


def _part(folder: Path, name: str, index: int) -> Path:
    return folder / name / f"{index:06d}.parquet"
