"""Append-only files: a line that a crash cut off is removed and reported, every other change is damage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from simfl.errors import DamagedFile, RunError
from simfl.json_files import JsonLines, decode_line, encode_line

ROWS: list[dict[str, Any]] = [
    {"event": "started", "text": 'a "quoted" é\n'},
    {"loss": float("nan"), "n": [1, 2]},
    {"crc": 3},
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with the rows."""
    found = tmp_path / "log.jsonl"
    JsonLines(found).append(*ROWS)
    return found


def test_lines_are_read_back_and_are_json(path: Path) -> None:
    assert repr(list(JsonLines(path).lines())) == repr(ROWS)
    assert [decode_line(line) is not None for line in path.read_bytes().splitlines()] == [True] * 3
    assert JsonLines(path).cut_off() == JsonLines(path).repair() == ""


def test_every_flipped_byte_is_noticed(path: Path) -> None:
    original = path.read_bytes()
    for at in range(len(original)):
        for bit in (1, 2, 64, 128):
            path.write_bytes(original[:at] + bytes([original[at] ^ bit]) + original[at + 1 :])
            with pytest.raises(DamagedFile, match=r"^[^\n]*log\.jsonl: [^\n]*line \d [^\n]*damaged$"):
                JsonLines(path).cut_off()


def test_a_line_of_any_length_that_a_crash_cut_off_is_removed_and_reported(path: Path) -> None:
    original, last = path.read_bytes(), encode_line(ROWS[-1])
    for length in range(1, len(last) - 1):
        path.write_bytes(original[: -len(last)] + last[:length])
        log = JsonLines(path)
        assert len(list(log.lines())) == 2
        assert log.cut_off() == f"{path}: line 3 is incomplete, as a crash leaves it"
        assert JsonLines(path).repair() == f"{path}: line 3 is incomplete, as a crash leaves it; removed"
        JsonLines(path).append(ROWS[-1])
        assert path.read_bytes() == original


def test_a_line_without_its_end_is_completed(path: Path) -> None:
    original = path.read_bytes()
    path.write_bytes(original[:-1])
    assert JsonLines(path).repair() == ""
    assert path.read_bytes() == original


def test_a_reader_follows_a_file_that_is_repaired_and_grows(path: Path) -> None:
    log = JsonLines(path)
    assert len(list(log.lines())) == 3
    with open(path, "ab") as file:
        file.write(encode_line({"n": 1})[:9])
    assert list(log.lines()) == []
    JsonLines(path).repair()
    JsonLines(path).append({"n": 2}, {"n": 3}, sync=True)
    assert list(log.lines()) == [{"n": 2}, {"n": 3}]


def test_a_file_that_cannot_be_read_or_written_raises_one_line(tmp_path: Path) -> None:
    for call in (lambda: list(JsonLines(tmp_path).lines()), lambda: JsonLines(tmp_path / "a" / "b").append({"n": 1})):
        with pytest.raises(RunError, match=r"^[^\n]+$"):
            call()
