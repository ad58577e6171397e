"""Partitions written by hand: rows of each client from Python or from a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

import simfl
from simfl.config.fields import read, written
from simfl.data.base import Split
from simfl.data.partition.by_hand import ByHand
from simfl.data.partition.partitioners import Partitioner
from simfl.errors import ConfigError, DataError

TEN = Split(pa.table({"label": list(range(10))}))
LISTS = [[0, 1, 2, 7], [3, 5]]


def rows(given: object) -> list[list[int]]:
    partitioner: Partitioner = read(Partitioner, given, "partition")
    partition = partitioner.split(TEN, 0)
    return [partition.rows(client).tolist() for client in range(len(partition))]


@pytest.mark.parametrize(
    "given",
    [
        LISTS,
        tuple(map(tuple, LISTS)),
        [np.array(LISTS[0]), torch.tensor(LISTS[1])],
        [[7, 2, 1, 0], [5, 3]],
        dict(enumerate(LISTS)),
        {"clinic a": LISTS[0], "clinic b": LISTS[1]},
        {"clients": LISTS},
        {"rows": LISTS},
        {"by": "rows", "rows": LISTS},
        {"by": "rows", "rows": ["0-2,7", "3,5"], "clients": 2},
        {"by": "rows", "rows": {"a": "0-2, 7", "b": "3,5"}},
    ],
)
def test_rows_are_given_as_lists_mappings_or_ranges(given: object) -> None:
    assert rows(given) == LISTS


def test_ranges_and_declared_empty_clients_are_allowed() -> None:
    given = {"rows": [range(3), [], range(9, 10)]}
    assert rows({**given, "empty_clients": True}) == [[0, 1, 2], [], [9]]
    with pytest.raises(ConfigError, match="client 1: it has no row"):
        rows(given)
    assert rows({"by": "rows", "rows": ["0-2", "", "9"], "empty_clients": True}) == [[0, 1, 2], [], [9]]


@pytest.mark.parametrize("given", [LISTS, {"a": LISTS[0], "b": LISTS[1]}])
def test_rows_are_written_to_the_experiment_and_read_back(given: object) -> None:
    partitioner = read(Partitioner, given, "partition")
    plain = written(partitioner)
    assert list(plain["rows"].values() if isinstance(given, dict) else plain["rows"]) == ["0-2,7", "3,5"]
    assert rows(plain) == LISTS


def test_names_of_clients_are_their_metadata() -> None:
    partition = ByHand(rows={"a": [0], "b": [1]}).split(TEN, 0)
    assert [partition.meta(client) for client in range(2)] == [{"name": "a"}, {"name": "b"}]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([[0, 1], [10]], "client 1: row 10, but the split has rows 0 to 9"),
        ([[0, -1], [2]], "client 0: row -1, but the split has rows 0 to 9"),
        ([[0, 1], [1, 2]], "client 1: row 1 is also in client 0"),
        ([[0, 0], [2]], "client 0: row 0 is listed twice"),
        ({"a": [0, 0.5], "b": [2]}, "client 0 ('a'): [0, 0.5] given, expected a list of rows, which are whole numbers"),
        ([[True], [2]], "client 0: [True] given, expected a list of rows"),
        ([["x"], [2]], "client 0: ['x'] given, expected a list of rows"),
        ([[2**70], [2]], "client 0: 1180591620717411303424 is no row"),
        ({"by": "rows", "rows": ["0-2-3"]}, "client 0: '0-2-3' given, expected rows and ranges such as '0-5,7'"),
        ({"by": "rows", "rows": [3]}, "client 0: 3 given, expected a list of rows"),
        ({"by": "rows"}, "missing; give a list of rows for each client"),
    ],
)
def test_rows_that_are_none_are_refused_in_one_line(given: object, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        rows(given)
    assert str(error.value).startswith(f"partition.rows: {said}")


def test_the_number_of_clients_and_whole_documents_are_checked() -> None:
    with pytest.raises(ConfigError, match=r"partition\.clients: 3 requested, the data has 2 clients"):
        rows({"by": "rows", "rows": LISTS, "clients": 3})
    shared = Split(pa.table({"document": [0, 0, 1]}), pa.table({"id": ["a", "b"]}))
    with pytest.raises(
        DataError, match="document 'a' is in client 0 and client 1; allowed with shared_documents: true"
    ):
        ByHand(rows=((0, 2), (1,))).split(shared, 0)
    assert len(ByHand(rows=((0, 2), (1,)), shared_documents=True).split(shared, 0)) == 2


@pytest.mark.parametrize("given", [{"clients": 4}, [1, 2], ["0-2", "3"], "rows", {"a": 1}, []])
def test_other_values_are_no_rows(given: Any) -> None:
    with pytest.raises(ConfigError):
        rows(given)


def test_a_run_with_rows_by_hand_resumes_from_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIMFL_CACHE", str(tmp_path / "cache"))
    x = np.arange(20, dtype=np.float32).reshape(10, 2)
    data = {"train": (x, np.arange(10) % 2), "valid": (x, np.arange(10) % 2)}
    phase = {"objective": "classification", "rounds": 1, "participation": 1.0}
    phase["local"] = {"optimizer": "sgd", "learning_rate": 0.1, "batch_size": 2}
    experiment = {"name": "hand", "data": data, "partition": LISTS, "model": "mlp", "phases": [phase]}
    run = simfl.run(experiment, out=tmp_path / "run", backend="inline")
    assert run.partition.sizes.tolist() == [4, 2]
    assert simfl.run(experiment, out=tmp_path / "run", backend="inline", resume=True).partition.sizes.tolist() == [4, 2]
