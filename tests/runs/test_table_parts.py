"""Parts of tables: verified when they are read, and covered by a checkpoint as far as it knows them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from simfl.errors import DamagedFile
from simfl.json_files import JsonLines
from simfl.runs.parts import INDEX, Coverage, TableParts
from simfl.runs.tables import TableRow


def filled(folder: Path, *steps: int) -> TableParts:
    """Return the parts of two tables, written for these steps."""
    parts = TableParts(folder)
    for step in steps:
        parts.write(step, {"rounds": [{"round": step, "loss": step / 2}], "clients": [{"client": 7}], "samples": []})
    return parts


def flip(path: Path, at: int = -3) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def test_parts_are_joined_in_the_order_in_which_they_were_written(tmp_path: Path) -> None:
    parts = filled(tmp_path, 0, 2, 10, 1_000_000)
    for found in (parts, TableParts.open(tmp_path, parts.coverage), TableParts.open(tmp_path, None)):
        assert [row["round"] for row in found.rows("rounds")] == [0, 2, 10, 1_000_000]
        assert found.joined("rounds").to_pylist() == list(found.rows("rounds"))
        assert (len(found.joined("clients")), len(found.joined("samples"))) == (4, 0)
        assert found.coverage == parts.coverage


def test_parts_may_have_different_columns_and_ints_become_floats(tmp_path: Path) -> None:
    parts = TableParts(tmp_path)
    parts.write(1, {"t": [{"a": 1}, {"b": "x", "a": None}]})
    parts.write(2, {"t": [{"a": 2.5, "c": [1, 2]}, {"only": None}]})
    empty: TableRow = dict.fromkeys(["a", "b", "c", "only"])
    assert parts.joined("t").to_pylist() == [
        empty | {"a": 1.0},
        empty | {"b": "x"},
        empty | {"a": 2.5, "c": [1, 2]},
        empty,
    ]


def test_many_parts_are_merged_and_every_coverage_keeps_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 3 parts to a merged one, 14 steps leave one of 9, one of 3 and two single ones; 14 rounds stay 14 rows."""
    monkeypatch.setattr("simfl.runs.parts.FAN_IN", 3)
    parts, coverages = TableParts(tmp_path), []
    for step in range(14):
        parts.write(step, {"rounds": [{"round": step}], "clients": [{"client": 7}]})
        coverages.append(parts.coverage)
    assert [part.name.partition("/")[2] for part in parts.of("rounds")] == [
        "000008-2.parquet",
        "000011-1.parquet",
        "000012.parquet",
        "000013.parquet",
    ]
    for step, coverage in enumerate(coverages):
        found = TableParts.open(tmp_path, coverage)
        assert [row["round"] for row in found.rows("rounds")] == list(range(step + 1))
        found.verify()
        assert found.coverage == coverage
    before = len(list(tmp_path.glob("*/*.parquet")))
    parts.drop_replaced(coverages[12].parts)
    assert before - len(list(tmp_path.glob("*/*.parquet"))) == 2 * (9 + 3 + 3)
    assert not parts.has_replaced
    for covered in (coverages[12], coverages[13], None):
        TableParts.open(tmp_path, covered).verify()
    with pytest.raises(DamagedFile, match=r"000009\.parquet: this part of a table is missing"):
        TableParts.open(tmp_path, coverages[10])


def test_merged_parts_that_are_not_covered_are_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simfl.runs.parts.FAN_IN", 3)
    parts = filled(tmp_path, 0, 1)
    coverage = parts.coverage
    parts.write(2, {"rounds": [{"round": 2}]})
    assert len(parts.of("rounds")) == 1
    again = TableParts.open(tmp_path, coverage)
    again.drop_others()
    assert sorted(path.name for path in tmp_path.glob("rounds/*")) == ["000000.parquet", "000001.parquet"]
    again.write(3, {"rounds": [{"round": 3}]})
    assert [row["round"] for row in TableParts.open(tmp_path, again.coverage).rows("rounds")] == [0, 1, 3]


def test_a_line_that_replaces_more_parts_than_there_are_is_refused(tmp_path: Path) -> None:
    line = {"merged": "rounds", "step": 1, "bytes": 1, "sha256": "", "level": 1, "replaces": 3}
    JsonLines(tmp_path / INDEX).append(line)
    with pytest.raises(DamagedFile, match=r"index.jsonl: line 1 replaces more parts than there are$"):
        TableParts.open(tmp_path, None)


def test_rounds_that_are_not_covered_are_dropped_and_can_be_written_again(tmp_path: Path) -> None:
    coverage = filled(tmp_path, 0, 1).coverage
    filled_later = TableParts.open(tmp_path, coverage)
    filled_later.write(2, {"rounds": [{"round": 2}], "ledger": [{"bytes": 1}]})
    again = TableParts.open(tmp_path, coverage)
    assert len(list(again.rows("rounds"))) == 2
    assert again.drop_others() == ""
    assert {path.name for path in tmp_path.rglob("*.parquet")} == {"000000.parquet", "000001.parquet"}
    again.write(2, {"rounds": [{"round": 2}]})
    assert TableParts.open(tmp_path, None).coverage == again.coverage
    assert not list(tmp_path.glob("ledger/*"))


def test_an_index_that_a_crash_cut_off_is_repaired_and_said(tmp_path: Path) -> None:
    parts = filled(tmp_path, 0)
    with open(tmp_path / INDEX, "ab") as file:
        file.write(b'{"table": "rou')
    found = TableParts.open(tmp_path, parts.coverage)
    assert found.drop_others() == f"{tmp_path / INDEX}: an incomplete line was removed"
    assert found.drop_others() == ""
    assert len(list(JsonLines(tmp_path / INDEX).lines())) == 2


def test_a_crash_while_writing_leaves_only_the_old_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    coverage = filled(tmp_path, 1).coverage

    def crash(*_: Any) -> None:
        raise KeyboardInterrupt

    for operation in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(os, operation, crash)
            with pytest.raises(KeyboardInterrupt):
                TableParts.open(tmp_path, coverage).write(2, {"rounds": [{"round": 2}]})
        assert [row["round"] for row in TableParts.open(tmp_path, coverage).rows("rounds")] == [1]


def test_every_flipped_byte_is_noticed_or_without_effect(tmp_path: Path) -> None:
    parts = filled(tmp_path, 0, 1)
    whole = parts.joined("rounds").to_pylist()
    for path in (tmp_path / INDEX, tmp_path / "rounds" / "000001.parquet"):
        original = path.read_bytes()
        for at in range(len(original)):
            flip(path, at)
            with pytest.raises(DamagedFile, match=rf"^[^\n]*{path.name}[^\n]*$"):
                TableParts.open(tmp_path, parts.coverage).joined("rounds")
            path.write_bytes(original)
    assert TableParts.open(tmp_path, parts.coverage).joined("rounds").to_pylist() == whole


@pytest.mark.parametrize("name", ["rounds/000001.parquet", "clients/000000.parquet", INDEX])
@pytest.mark.parametrize("kind", ["missing", "shorter"])
def test_a_missing_or_shorter_file_is_named_when_the_parts_are_opened(tmp_path: Path, name: str, kind: str) -> None:
    coverage = filled(tmp_path, 0, 1).coverage
    path = tmp_path / name
    if kind == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DamagedFile, match=rf"^[^\n]*{name}: [^\n]*$"):
        TableParts.open(tmp_path, coverage)


@pytest.mark.parametrize(
    "line", [{"table": "rounds"}, {"table": "../up", "step": 1, "bytes": 1, "sha256": ""}, {"step": "x"}]
)
def test_a_line_that_describes_no_part_is_refused(tmp_path: Path, line: dict[str, Any]) -> None:
    JsonLines(tmp_path / INDEX).append(line)
    with pytest.raises(DamagedFile, match=r"index.jsonl: line 1"):
        TableParts.open(tmp_path, None)


def test_a_coverage_is_read_back_and_others_are_refused() -> None:
    coverage = Coverage(3, "ab")
    assert Coverage.from_json(coverage.to_json()) == coverage
    for content in (None, {}, {"parts": 1, "other": 2}):
        with pytest.raises(ValueError, match="missing"):
            Coverage.from_json(content)
