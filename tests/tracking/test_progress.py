"""The progress display of a run, and its summary as text."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from simfl.formatting import format_bytes, format_duration, format_rate
from simfl.runs.summary import summary_lines
from simfl.tracking.progress import Progress, ProgressStatus

PLAN = {"name": "quick", "rounds": 40, "clients": 10, "workers": 2, "resumed_at": None}
SUMMARY = {
    "name": "quick", "status": "completed", "rounds": 40, "folder": "runs/quick",
    "initial": {"anls": 0.25}, "final": {"anls": 0.5}, "baselines": {"question_only": 0.125},
    "bytes": {"download": 2_000_000, "upload": 500_000, "total": 2_500_000},
    "charged": {"download": 2_000_000, "upload": 500_000, "total": 2_500_000},
    "seconds": {"total": 65.0},
}  # fmt: skip


class Clock:
    """A clock that tests set."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def row(step: int, **more: Any) -> dict[str, Any]:
    return {"step": step, "loss": 1.5, "sampled": 2, "download_bytes": 3000, "upload_bytes": 1000, **more}


def shown(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.fixture
def clock() -> Clock:
    return Clock()


def plain(clock: Clock) -> Progress:
    return Progress(Console(file=io.StringIO(), width=200), Console(file=io.StringIO(), width=200), clock)


def test_outside_of_a_terminal_rounds_are_printed_every_ten_seconds(clock: Clock) -> None:
    with plain(clock) as progress:
        progress.started(PLAN)
        for step in range(1, 41):
            clock.now = float(step)
            progress.round_done(row(step))
    lines = shown(progress.progress).splitlines()
    assert lines[0] == "quick: 10 clients, 40 rounds, 2 workers"
    assert [line.split()[1] for line in lines[1:]] == ["1/40", "11/40", "21/40", "31/40", "40/40"]


def test_the_progress_line_shows_loss_score_bytes_rate_and_time_left() -> None:
    status = ProgressStatus(rounds=40, began=100.0, score="valid anls 0.5000")
    status.add(row(1))
    # 2 clients and 1 round in 4 seconds: 0.5 clients/s, 39 rounds of 4 s left
    assert (
        status.line(104.0) == "loss 1.5000  valid anls 0.5000  down 3.0 kB, up 1.0 kB  0.5 clients/s  2 min 36 s left"
    )


def test_the_time_left_of_a_resumed_run_uses_its_own_rounds_only(clock: Clock) -> None:
    progress = plain(clock)
    progress.started({**PLAN, "resumed_at": 30})
    clock.now = 4.0
    progress.round_done(row(32))  # 2 rounds in 4 seconds, 8 rounds left
    assert "resumed after round 30" in shown(progress.progress)
    assert shown(progress.progress).rstrip().endswith("16.0 s left")


def test_a_round_without_clients_keeps_the_last_loss() -> None:
    status = ProgressStatus(rounds=3)
    status.add(row(1))
    status.add(row(2, loss=None, sampled=0))
    assert status.loss == 1.5
    assert status.clients == 2


def test_a_terminal_shows_a_live_line(clock: Clock) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=200)
    with Progress(console, Console(file=io.StringIO()), clock) as progress:
        progress.started(PLAN)
        clock.now = 2.0
        progress.round_done(row(1))
        progress.evaluated({"step": 1, "split": "valid", "model": "global", "metric": "anls", "value": 0.5})
        progress.bar.refresh()
        assert " 1/40" in shown(console)
        assert "valid anls 0.5000" in shown(console)
    assert not progress.bar.live.is_started


def test_scores_are_shown_with_their_model(clock: Clock) -> None:
    progress = plain(clock)
    progress.evaluated({"step": 3, "split": "valid", "model": "personal", "metric": "anls", "value": 0.5})
    assert shown(progress.progress) == "after round 3: valid anls 0.5000 (personal)\n"


def test_the_summary_goes_to_the_result_console(clock: Clock) -> None:
    progress = plain(clock)
    progress.finished(SUMMARY)
    assert shown(progress.progress) == ""
    assert shown(progress.result).splitlines() == summary_lines(SUMMARY)


def test_the_summary_shows_scores_bytes_and_folder() -> None:
    assert summary_lines(SUMMARY) == [
        "quick: completed after 40 rounds in 1 min 05 s",
        "  anls                    0.5000 (before the first round 0.2500)",
        "  baseline question_only  0.1250",
        "  download                2.0 MB",
        "  upload                  500.0 kB",
        "  total                   2.5 MB",
        "  results in              runs/quick",
    ]


def test_the_summary_of_an_interrupted_run_shows_how_to_resume() -> None:
    assert summary_lines({**SUMMARY, "status": "interrupted"})[-1].split(None, 2)[-1] == "the same command and --resume"


def test_charged_bytes_are_shown_if_they_differ() -> None:
    charged = {"download": 3_000_000, "upload": 500_000, "total": 3_500_000}
    lines = summary_lines({**SUMMARY, "charged": charged})
    assert [line.split(None, 1)[1] for line in lines[3:6]] == [
        "2.0 MB (charged 3.0 MB)",
        "500.0 kB",
        "2.5 MB (charged 3.5 MB)",
    ]


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1500, "1.5 kB"),
        (12_345_678, "12.3 MB"),
        (2_500_000_000, "2.50 GB"),
        (3 * 10**12, "3.00 TB"),
    ],
)
def test_bytes_are_formatted_with_units(count: int, expected: str) -> None:
    assert format_bytes(count) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"), [(4.25, "4.2 s"), (59.96, "1 min 00 s"), (185, "3 min 05 s"), (7620, "2 h 07 min")]
)
def test_durations_are_formatted_with_units(seconds: float, expected: str) -> None:
    assert format_duration(seconds) == expected


def test_slow_rates_are_formatted_as_seconds_per_client() -> None:
    assert format_rate(0.04) == "25.0 s/client"
    assert format_rate(0.5) == "0.5 clients/s"
