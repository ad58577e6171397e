"""The table of bundled benchmarks in docs/reference/data.md is the one that its generator writes."""

from __future__ import annotations

import shutil
import subprocess
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
    rows = make_data.read_rows(make_data.FILE.read_text(encoding="utf-8"))
    assert list(rows) == list(make_data.BUNDLED)
    for name, cells in rows.items():
        assert name in DATA
        assert len(cells) == len(make_data.COLUMNS)
        assert all(cells)


def test_rewriting_the_table_changes_nothing(make_data) -> None:
    text = make_data.FILE.read_text(encoding="utf-8")
    assert make_data.replace_table(text, make_data.format_table(list(make_data.read_rows(text).values()))) == text


def test_make_data_builds_the_benchmarks_of_the_table(make_data) -> None:
    makefile = (DOCS.parent / "Makefile").read_text(encoding="utf-8")
    (line,) = [line for line in makefile.splitlines() if line.startswith("BUNDLED")]
    assert line.split(":=")[1].split() == list(make_data.BUNDLED)


def test_check_row_ignores_time_and_size_and_names_any_other_difference(make_data) -> None:
    row = [str(number) for number in range(len(make_data.COLUMNS))]
    slower = [
        f"{cell} more" if name in make_data.UNSTABLE else cell
        for name, cell in zip(make_data.COLUMNS, row, strict=True)
    ]
    make_data.check_row("word5", row, slower)
    with pytest.raises(SystemExit, match="word5, hash: '10' written, 'other' built"):
        make_data.check_row("word5", row, [*row[:-1], "other"])


def test_make_data_imports_simfl_from_its_own_tree(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "simfl" / "data").mkdir(parents=True)
    script = shutil.copy(DOCS / "make_data.py", tmp_path / "docs")
    (tmp_path / "simfl" / "__init__.py").touch()
    (tmp_path / "simfl" / "data" / "__init__.py").write_text("raise SystemExit('imported from the copy')")
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True)
    assert (done.returncode, done.stderr.strip()) == (1, "imported from the copy")


def test_every_registered_data_set_is_described_in_the_documentation() -> None:
    text = (DOCS / "reference/data.md").read_text(encoding="utf-8")
    assert [name for name in DATA if f"`{name}`" not in text] == []
