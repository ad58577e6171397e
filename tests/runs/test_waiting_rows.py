"""Rows that wait for a checkpoint reach the disk once, in their order, however many there are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from simfl.aggregation.columns import Columns
from simfl.errors import RunError
from simfl.runs import waiting_rows
from simfl.runs.parts import TableParts
from simfl.runs.waiting_rows import WaitingRows


def block(step: int) -> Columns:
    """Return the rows of 40 clients."""
    return Columns(40, {"step": step, "client": np.arange(40) * step, "part": "weights"})


@pytest.mark.parametrize(("batch", "part"), [(10**6, 10**6), (100, 10**6), (100, 130), (1, 1)])
def test_rows_reach_the_disk_once_and_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch: int, part: int
) -> None:
    monkeypatch.setattr(waiting_rows, "BATCH_ROWS", batch)
    monkeypatch.setattr(waiting_rows, "PART_ROWS", part)
    waiting, parts = WaitingRows(["clients", "rounds"]), TableParts(tmp_path)
    for step in range(1, 12):
        waiting.add({"clients": block(step), "rounds": [{"step": step}]}, parts, step)
        if step == 7:
            seen = waiting.rows("clients")
            written = list(parts.rows("clients"))
    expected = [row for step in range(1, 12) for row in block(step)]
    assert written + seen == expected[: 7 * 40]
    assert waiting.start_writing(parts, 11, lambda: 11).result() == 11
    assert waiting.rows("clients") == []
    again = TableParts.open(tmp_path, parts.coverage)
    assert list(again.rows("clients")) == expected
    assert [row["step"] for row in again.rows("rounds")] == list(range(1, 12))
    if part == 130:
        assert len(again.of("clients")) > 1


def test_a_disk_that_refuses_rows_is_reported_at_the_latest_by_the_next_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting_rows, "BATCH_ROWS", 1)
    monkeypatch.setattr(waiting_rows, "PART_ROWS", 1)
    waiting, parts = WaitingRows(["clients"]), TableParts(tmp_path / "missing")
    (tmp_path / "missing").write_text("a file in the place of the folder")
    waiting.add({"clients": block(1)}, parts, 1)
    with pytest.raises(RunError, match="a file is in the place of a folder"):
        waiting.start_writing(parts, 1, list).result()
