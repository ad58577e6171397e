"""Partitions that a JSON, Parquet or CSV file lists."""

from __future__ import annotations

import json
import pickle
from dataclasses import fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from simfl.config.fields import read, written
from simfl.data.base import Split
from simfl.data.partition.partitioners import Natural, Partitioner
from simfl.errors import ConfigError, DataError

SPLIT = Split(pa.table({"id": list("abcdef"), "label": range(6), "site": ["x", "y", "x", "z", "z", "y"]}))


def clients(path: Path, content: object, **settings: Any) -> list[list[int]]:
    path.write_text(json.dumps(content))
    return rows({"by": "file", "path": str(path), **settings})


def rows(given: object) -> list[list[int]]:
    partitioner: Partitioner = read(Partitioner, given, "partition")
    partition = partitioner.split(SPLIT, 0)
    return [partition.rows(client).tolist() for client in range(len(partition))]


@pytest.mark.parametrize(
    "content",
    [
        {"north": [0, 2], "south": [1, 3, 4]},
        {"north": ["a", "c"], "south": ["b", "d", "e"]},
        {"north": "0,2", "south": "1,3-4"},
        [[0, 2], [1, 3, 4]],
        {"clients": {"north": [2, 0], "south": ["e", "b", "d"]}},
    ],
)
def test_a_json_file_lists_rows_or_ids(content: object, tmp_path: Path) -> None:
    assert clients(tmp_path / "clients.json", content) == [[0, 2], [1, 3, 4]]


@pytest.mark.parametrize("name", ["row", "id"])
@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_a_table_lists_one_example_a_row(name: str, suffix: str, tmp_path: Path) -> None:
    values: list[Any] = [0, 2, 1, 3, 4] if name == "row" else list("acbde")
    table, path = pa.table({"client": ["n", "n", "s", "s", "s"], name: values}), tmp_path / f"clients.{suffix}"
    if suffix == "parquet":
        pq.write_table(table, path)
    else:
        path.write_text(f"client,{name}\n" + "".join(f"{r['client']},{r[name]}\n" for r in table.to_pylist()))
    assert rows({"by": "file", "path": str(path)}) == [[0, 2], [1, 3, 4]]


def test_values_of_any_column_give_all_their_rows(tmp_path: Path) -> None:
    assert clients(tmp_path / "c.json", {"a": ["x", "z"], "b": ["y"]}, column="site") == [[0, 2, 3, 4], [1, 5]]


def test_names_of_clients_are_kept_and_settings_written(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text('{"7": [0], "north": [1]}')
    partitioner: Any = read(Partitioner, {"by": "file", "path": str(tmp_path / "c.json"), "clients": 2}, "partition")
    assert [partitioner.split(SPLIT, 0).meta(k) for k in range(2)] == [{"name": "7"}, {"name": "north"}]
    assert written(partitioner)["by"] == "file"
    assert partitioner.expected(None).tolist() == [1, 1]
    assert set(vars(pickle.loads(pickle.dumps(partitioner)))) == {one.name for one in fields(partitioner)}


WRONG: dict[str, tuple[object, dict[str, Any], str]] = {
    "row twice": ({"a": [0, 0]}, {}, r"client 'a': row 0 is listed twice"),
    "two clients": ({"a": [0], "b": [1, 0]}, {}, r"client 'b': row 0 is also in client 0 \('a'\)"),
    "out of range": ({"a": [6]}, {}, r"client 'a': row 6, but the split has rows 0 to 5"),
    "unknown id": ({"a": ["a", "cc"]}, {}, r"client 'a': the data have no id 'cc'; did you mean 'c'"),
    "id twice": ({"a": ["a", "a"]}, {}, r"client 'a' lists id 'a' twice"),
    "empty client": ({"a": [0], "b": []}, {}, r"client 'b': it has no row; .*empty_clients: true"),
    "no column": ({"a": ["x"]}, {"column": "town"}, r"no column 'town'"),
    "no clients": ({}, {}, r"expected the rows or ids of each client"),
    "other number": ({"a": [0]}, {"clients": 3}, r"clients: 3 requested, the data has 1 clients"),
    "no rows": ({"a": 3}, {}, r"client 'a': 3 given, expected a list of rows"),
    "mixed": ({"a": ["a", None]}, {}, r"client 'a' has .*, expected a list of ids"),
}


@pytest.mark.parametrize("name", WRONG)
def test_mistakes_are_refused_in_one_line(name: str, tmp_path: Path) -> None:
    content, settings, message = WRONG[name]
    with pytest.raises((ConfigError, DataError), match=message) as caught:
        clients(tmp_path / "clients.json", content, **settings)
    assert "\n" not in str(caught.value)


def test_an_empty_client_can_be_allowed(tmp_path: Path) -> None:
    assert clients(tmp_path / "c.json", {"a": [0], "b": []}, empty_clients=True) == [[0], []]


def test_files_without_clients_are_refused(tmp_path: Path) -> None:
    (tmp_path / "c.csv").write_text("who,row\na,0\n")
    with pytest.raises(DataError, match=r"its columns are who, row; expected client and row, or client and id"):
        rows({"by": "file", "path": str(tmp_path / "c.csv")})
    with pytest.raises(ConfigError, match=r"partition\.path: missing"):
        rows({"by": "file"})
    without_ids = Split(SPLIT.examples.drop_columns(["id"]))
    (tmp_path / "c.json").write_text('{"a": ["x"]}')
    partitioner: Partitioner = read(Partitioner, {"by": "file", "path": str(tmp_path / "c.json")}, "partition")
    with pytest.raises(ConfigError, match=r"the data have no column 'id'; list row numbers, or give partition\.column"):
        partitioner.split(without_ids, 0)


def test_a_column_makes_one_client_of_each_value() -> None:
    assert rows({"by": "column", "column": "site"}) == [[0, 2], [1, 5], [3, 4]]
    assert written(read(Partitioner, {"by": "column", "column": "site"}, "partition"))["by"] == "natural"
    assert isinstance(read(Partitioner, {"by": "column"}, "partition"), Natural)
