"""The table of bundled benchmarks in docs/data.md is the one that its generator writes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from simfl.data import DATA

DOCS = Path(__file__).parent.parent.parent / "docs"


@pytest.fixture
def make_data(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(DOCS))
    import make_data

    yield make_data
    sys.modules.pop("make_data", None)


def test_the_table_has_a_complete_row_for_each_bundled_benchmark_in_order(make_data) -> None:
    rows = make_data.rows(make_data.FILE.read_text(encoding="utf-8"))
    assert list(rows) == list(make_data.BUNDLED)
    for name, cells in rows.items():
        assert name in DATA
        assert len(cells) == len(make_data.COLUMNS)
        assert all(cells)


def test_rewriting_the_table_changes_nothing(make_data) -> None:
    text = make_data.FILE.read_text(encoding="utf-8")
    assert make_data.replaced(text, make_data.table(list(make_data.rows(text).values()))) == text


def test_make_data_builds_the_benchmarks_of_the_table(make_data) -> None:
    makefile = (DOCS.parent / "Makefile").read_text(encoding="utf-8")
    (line,) = [line for line in makefile.splitlines() if line.startswith("BUNDLED")]
    assert line.split(":=")[1].split() == list(make_data.BUNDLED)
