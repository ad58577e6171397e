"""Tables in Parquet files, and their hashes."""

import pyarrow as pa
import pytest

from simfl.errors import RunError
from simfl.runs import tables


def test_a_damaged_or_missing_table_raises_one_line(tmp_path):
    (tmp_path / "t.parquet").write_bytes(b"PAR1 nonsense")
    with pytest.raises(RunError, match=r"^.*t\.parquet: not a readable table: [^\n]*$"):
        tables.read(tmp_path / "t.parquet")
    with pytest.raises(RunError, match=r"u\.parquet: there is no such table$"):
        tables.read(tmp_path / "u.parquet")


def test_the_hash_covers_rows_independent_of_their_storage():
    whole = tables.table([{"a": 1, "b": None}, {"a": 2, "b": 0.1 + 0.2}])
    chunks = pa.concat_tables([whole.slice(0, 1), whole.slice(1)]).select(["b", "a"])
    assert chunks.column(0).num_chunks == 2
    assert tables.sha256(chunks) == tables.sha256(whole)
    assert tables.sha256(whole.append_column("empty", pa.nulls(2))) == tables.sha256(whole)
    assert tables.sha256(whole.take([1, 0])) != tables.sha256(whole)
    assert tables.sha256(tables.table([{"a": 1}, {"a": 2, "b": 0.3}])) != tables.sha256(whole)


def test_the_hash_excludes_named_columns_and_accepts_nan_and_bytes():
    rows = [{"loss": float("nan"), "key": b"\x00\xff", "seconds": 1.0}]
    later = [rows[0] | {"seconds": 2.0}]
    assert tables.sha256(tables.table(rows)) != tables.sha256(tables.table(later))
    assert tables.sha256(tables.table(rows), ["seconds"]) == tables.sha256(tables.table(later), ["seconds"])
