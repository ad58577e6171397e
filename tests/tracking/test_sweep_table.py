"""`simfl watch` of a sweep: its table in a terminal, in a pipe, and while runs are in progress."""

from __future__ import annotations

import io
import threading
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from simfl.json_files import JsonLines
from simfl.runs.folder import LOG, SWEEP, write_json
from simfl.tracking.sweep_table import watch_sweep

LABELS = ["fedprox-mu-0.1_local.learning_rate-0.001_seed-1", "fedprox-mu-0.1_local.learning_rate-0.001_seed-2"]
STARTED = {"event": "started", "name": "a", "rounds": 4, "clients": 10, "workers": 2, "resumed_at": None}
SCORE = {"event": "evaluated", "split": "valid", "model": "global", "metric": "accuracy", "step": 1}
ROUND = {"event": "round", "phase": 0, "step": 1, "loss": 1.25, "sampled": 7, "download_bytes": 10, "upload_bytes": 5}


def sweep_of(folder: Path, *labels: str) -> Path:
    (folder / "runs").mkdir(parents=True)
    write_json(folder / SWEEP, {"name": "s", "runs": [{"label": label, "varied": {}} for label in labels]})
    return folder


def log(folder: Path, label: str, *lines: dict[str, Any]) -> None:
    (folder / "runs" / label).mkdir(exist_ok=True)
    JsonLines(folder / "runs" / label / LOG).append(*({"time": time.time(), **line} for line in lines))


def shown(folder: Path, **settings: Any) -> list[str]:
    out = io.StringIO()
    watch_sweep(folder, True, Console(file=out, **settings))
    return out.getvalue().splitlines()


def test_a_pipe_shows_whole_names_and_scores(tmp_path: Path) -> None:
    folder = sweep_of(tmp_path / "s", *LABELS)
    log(folder, LABELS[0], STARTED, ROUND, {**SCORE, "value": 0.4321})
    lines = shown(folder)
    assert lines[1].split()[:5] == [LABELS[0], "running", "1/4", "valid", "accuracy"]
    assert "0.4321" in lines[1]
    assert lines[2].split() == [LABELS[1], "waiting"]
    assert lines[3] == "2 runs: 1 running, 1 waiting"


def test_a_narrow_terminal_keeps_names_and_scores(tmp_path: Path) -> None:
    folder = sweep_of(tmp_path / "s", "trial-0001", "trial-0002")
    for label in ("trial-0001", "trial-0002"):
        log(folder, label, STARTED, ROUND, {**SCORE, "value": 0.4321})
    lines = shown(folder, width=80, force_terminal=True, color_system=None)
    for label, line in zip(("trial-0001", "trial-0002"), lines[1:3], strict=True):
        assert line.startswith(label)
        assert "valid accuracy 0.4321" in line
        assert len(line) <= 80


def test_watching_follows_runs_until_all_have_ended(tmp_path: Path) -> None:
    folder, out = sweep_of(tmp_path / "s", "a", "b"), io.StringIO()
    log(folder, "a", STARTED, ROUND, {"event": "finished", "status": "completed"})
    console = Console(file=out, width=100, force_terminal=True, color_system=None)
    watcher = threading.Thread(target=watch_sweep, args=(folder, False, console, 0.01))
    watcher.start()
    deadline = time.monotonic() + 20
    while "1 waiting" not in out.getvalue() and time.monotonic() < deadline:
        time.sleep(0.01)
    log(folder, "b", STARTED, ROUND)
    while "1 running" not in out.getvalue() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert watcher.is_alive()
    log(folder, "b", {"event": "finished", "status": "failed"})
    watcher.join(20)
    assert not watcher.is_alive()
    assert "2 runs: 1 completed, 1 failed" in out.getvalue()
