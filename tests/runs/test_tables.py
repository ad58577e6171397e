"""Tables that are written in parts."""

import os

import pyarrow as pa
import pytest

from simfl.errors import RunError
from simfl.runs import tables


def test_parts_are_joined_in_the_order_of_their_index(tmp_path):
    for index in (10, 2, 1_000_000):
        tables.write_part(tmp_path, "rounds", index, [{"round": index, "loss": 0.5}])
    tables.write_part(tmp_path, "clients", 3, [{"client": 7}])
    tables.join(tmp_path, "rounds", tmp_path / "rounds.parquet")
    assert tables.rows(tmp_path / "rounds.parquet") == [{"round": i, "loss": 0.5} for i in (2, 10, 1_000_000)]


def test_rows_and_parts_may_have_different_columns_and_ints_become_floats(tmp_path):
    tables.write_part(tmp_path, "t", 1, [{"a": 1}, {"b": "x", "a": None}])
    tables.write_part(tmp_path, "t", 2, [{"a": 2.5, "c": [1, 2]}, {"only": None}])
    tables.write_part(tmp_path, "t", 3, [])
    tables.join(tmp_path, "t", tmp_path / "t.parquet")
    empty = dict.fromkeys(["a", "b", "c", "only"])
    assert tables.rows(tmp_path / "t.parquet") == [
        empty | {"a": 1.0},
        empty | {"b": "x"},
        empty | {"a": 2.5, "c": [1, 2]},
        empty,
    ]


def test_a_part_that_is_written_again_replaces_the_old_one(tmp_path):
    for loss in (1.0, 2.0):
        tables.write_part(tmp_path, "t", 1, [{"loss": loss}])
    tables.join(tmp_path, "t", tmp_path / "t.parquet")
    assert tables.rows(tmp_path / "t.parquet") == [{"loss": 2.0}]


def test_drop_after_keeps_earlier_parts(tmp_path):
    for index in range(5):
        tables.write_part(tmp_path, "t", index, [{"i": index}])
    tables.drop_after(tmp_path, "t", 2)
    tables.drop_after(tmp_path, "never written", 2)
    assert [path.stem for path in tables.parts(tmp_path, "t")] == ["000000", "000001", "000002"]


def test_a_table_without_parts_is_empty(tmp_path):
    tables.join(tmp_path, "t", tmp_path / "t.parquet")
    assert tables.rows(tmp_path / "t.parquet") == []


def test_a_crash_while_writing_leaves_only_the_old_part(tmp_path, monkeypatch):
    tables.write_part(tmp_path, "t", 1, [{"i": 1}])

    def crash(*_):
        raise KeyboardInterrupt

    for operation in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(os, operation, crash)
            with pytest.raises(KeyboardInterrupt):
                tables.write_part(tmp_path, "t", 1, [{"i": 2}])
        assert [tables.rows(path) for path in tables.parts(tmp_path, "t")] == [[{"i": 1}]]


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
