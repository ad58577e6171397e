"""Rows stored by column are the rows that they were made of, also after a cut, a choice and a journey."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from simfl.aggregation.columns import Columns
from simfl.runs import tables

ROWS: list[dict[str, Any]] = [
    {"round": 3, "client": 7, "part": "weights", "loss": 0.5},
    {"round": 3, "client": 9, "part": "control", "loss": None},
    {"round": 3, "client": 2, "part": "weights", "loss": 0.25},
]


def test_rows_come_back_with_their_values_and_types() -> None:
    found = Columns.of(ROWS)
    assert list(found) == ROWS
    assert [found[0], found[-1]] == [ROWS[0], ROWS[-1]]
    assert all(
        type(a) is type(b)
        for row, own in zip(found, ROWS, strict=True)
        for a, b in zip(*map(dict.values, (row, own)), strict=True)
    )
    assert list(pickle.loads(pickle.dumps(found))) == ROWS


def test_blocks_with_and_without_equal_values_are_joined() -> None:
    other = {**ROWS[0], "round": 4}
    assert list(Columns.concat([Columns.of(ROWS[:1]), Columns(), Columns.of(ROWS[1:]), Columns.of([other])])) == [
        *ROWS,
        other,
    ]
    assert list(Columns.concat([])) == []


def test_rows_are_cut_chosen_and_added_up() -> None:
    found = Columns.of(ROWS)
    assert list(found[1:]) == ROWS[1:]
    assert list(found.where("part", "weights")) == [ROWS[0], ROWS[2]]
    assert list(found.where("round", 3)) == ROWS
    assert len(found.where("round", 4)) == len(found.where("missing", 1)) == 0
    assert list(found.take(np.array([2, 0]))) == [ROWS[2], ROWS[0]]
    assert [found.total(name) for name in ("client", "round", "missing")] == [18, 9, 0]
    assert list(found.with_column("client", np.arange(3)))[2] == {**ROWS[2], "client": 2}


@pytest.mark.parametrize("rows", [ROWS, ROWS[:1], ROWS[1:2]])
def test_a_table_has_the_same_rows_and_types_as_one_of_single_rows(rows: list[dict[str, Any]]) -> None:
    content = tables.table(Columns.of(rows))
    assert content.to_pylist() == rows
    assert tables.sha256(content) == tables.sha256(tables.table(rows))
    assert content.schema.field("client").type == tables.table(ROWS).schema.field("client").type
