"""`simfl watch`: a run in progress, finished, killed, resumed."""

from __future__ import annotations

import io
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from fakes import Killed, Stopping, experiment, run
from rich.console import Console

from simfl.cli import main
from simfl.errors import RunError
from simfl.json_files import JsonLines, encode_line
from simfl.runs.folder import write_json
from simfl.tracking.watch import RunView, sparkline, watch

STARTED = {"event": "started", "name": "toy", "rounds": 4, "clients": 10, "workers": 2, "resumed_at": None}
SCORE = {"event": "evaluated", "split": "valid", "model": "global", "metric": "accuracy"}


def round_line(step: int, loss: float | None = 1.0, **more: Any) -> dict[str, Any]:
    numbers = {"phase": 0, "step": step, "loss": loss, "sampled": 7, "download_bytes": 1000, "upload_bytes": 500}
    return {"event": "round", "time": 100.0 + step, **numbers, **more}


def view_of(*lines: dict[str, Any]) -> RunView:
    view = RunView()
    for line in lines:
        view.update({"time": 100.0, **line})
    return view


def test_a_run_is_running_until_its_log_stops() -> None:
    view = view_of(STARTED, round_line(1), round_line(2))
    assert view.state(103.0) == "running"
    assert view.state(262.0) == "no log line for 2 min 40 s; it may have died"
    assert view.status.line(102.0) == "loss 1.0000  down 2.0 kB, up 1.0 kB  7.0 clients/s  2.0 s left"


def test_a_resumed_run_drops_lost_rounds() -> None:
    lost = [round_line(step, loss=float(step)) for step in (1, 2, 3)]
    scores = [{**SCORE, "step": step, "value": step / 10} for step in (0, 1, 2, 3)]
    view = view_of(STARTED, *lost, *scores, {**STARTED, "resumed_at": 1}, round_line(2, loss=7.0))
    assert view.losses == {1: 1.0, 2: 7.0}
    assert view.scores == {"valid accuracy": {0: 0.0, 1: 0.1}}
    assert view.status.first == 1


def test_an_interrupted_run_is_running_again_once_it_is_resumed() -> None:
    view = view_of(STARTED, round_line(1), {"event": "finished", "status": "interrupted"})
    assert view.state(101.0) == "interrupted"
    view.update({**STARTED, "time": 110.0, "resumed_at": 1})
    assert view.state(111.0) == "running"


def test_rounds_without_a_loss_are_skipped_and_personal_scores_are_labelled() -> None:
    view = view_of(STARTED, round_line(1, loss=None), {**SCORE, "model": "personal", "step": 1, "value": 0.5})
    view.update({**SCORE, "time": 103.0, "step": 2, "value": None})
    assert (view.losses, view.scores) == ({}, {"valid accuracy (personal)": {1: 0.5}})


def test_other_events_are_messages_and_the_last_five_are_shown() -> None:
    view = view_of(STARTED, *({"event": "message", "text": f"worker {n} died"} for n in range(9)))
    assert view.messages == [f"message: worker {n} died" for n in (4, 5, 6, 7, 8)]


def test_the_utilization_of_workers_is_shown() -> None:
    """Of 10 s, one worker was busy for 9 s and one for 6 s: 75 % on average, 1 s and 4 s idle."""
    view = view_of(STARTED, round_line(1, seconds=10.0, busy=[9.0, 6.0]))
    assert view.workers == "busy 75% (least 60%), 5.0 s idle in total"
    assert view_of(STARTED, round_line(1, seconds=10.0, busy=[9.0])).workers == "busy 90%, 1.0 s idle in total"


def test_a_partial_line_is_read_once_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    log = JsonLines(path)
    assert list(log.lines()) == []
    first, second = encode_line({"a": 1}), encode_line({"a": 2})
    path.write_bytes(first + second[:7])
    assert list(log.lines()) == [{"a": 1}]
    with open(path, "ab") as file:
        file.write(second[7:])
    assert list(log.lines()) == [{"a": 2}]
    assert list(log.lines()) == []


def test_a_finished_run_is_shown_with_its_summary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    summary = run(experiment("fedavg"), tmp_path)
    assert main(["watch", "--once", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("toy: completed   10 clients, 1 workers, since ")
    assert "round 3 of 3" in shown
    assert f"{summary['initial']['accuracy']:.4f} to {summary['final']['accuracy']:.4f}" in shown
    assert "toy: completed after 3 rounds" in shown


def test_watching_imports_neither_torch_nor_pandas_and_a_report_no_torch(tmp_path: Path) -> None:
    run(experiment(rounds=1), tmp_path / "r")
    code = (
        "import sys; from simfl.cli import main; folder = sys.argv[1]; heavy = {'torch', 'pandas', 'ray'};"
        "main(['watch', folder, '--once']); print(heavy & {*sys.modules});"
        "main(['report', folder]); print(heavy - {'pandas'} & {*sys.modules})"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "r")]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert shown[0].startswith("toy: completed")
    assert shown[-2].endswith("written")
    assert (shown[-3], shown[-1]) == ("set()", "set()")


def test_a_killed_run_is_shown_up_to_its_last_log_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Killed):
        run(experiment("fedavg"), tmp_path, display=Stopping(2, error=Killed))
    assert main(["watch", "--once", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("toy: running")
    assert "toy: completed" not in shown


def test_watching_ends_when_the_run_ends(tmp_path: Path) -> None:
    (tmp_path / "experiment.yaml").touch()
    write_json(tmp_path / "manifest.json", {})
    output = io.StringIO()
    console = Console(file=output, force_terminal=True, width=120)
    answers: list[str] = []
    thread = threading.Thread(target=lambda: answers.append(watch(tmp_path, False, console, every=0.01)))
    thread.start()
    lines = [STARTED, round_line(1), {"event": "finished", "status": "completed"}]
    for line in lines:
        time.sleep(0.05)
        assert answers == []
        JsonLines(tmp_path / "log.jsonl").append({"time": time.time(), **line})
    thread.join(timeout=10)
    assert answers == ["completed"]
    assert "there is no summary.json" in output.getvalue()


def test_a_folder_without_a_run_raises_one_line(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="holds no run"):
        watch(tmp_path, once=True)


def test_sparklines_span_the_values_and_include_the_last() -> None:
    assert sparkline([0.0, 0.5, 1.0]) == "▁▅█"
    assert sparkline([2.0, 2.0]) == "▁▁"
    assert sparkline([float(n) for n in range(1000)])[::39] == "▁█"
    assert sparkline([1.0, float("nan"), 2.0])[1] == " "
