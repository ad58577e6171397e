"""Commands that read runs and sweeps at a URL."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fakes import experiment

import simfl
from simfl import config, simulation
from simfl.cli import main
from simfl.json_files import JsonLines
from simfl.session.options import RunOptions
from simfl.tracking.sweep_table import SweepLogs, all_ended


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run an experiment twice, at a URL and in the folder `here`, and return the URL."""
    monkeypatch.setenv("SIMFL_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    found = f"memory://read{tmp_path}/small"
    for out in (found, tmp_path / "here"):
        simulation.run(experiment("fedavg", rounds=2), RunOptions(out, "inline"))
    return found


def test_commands_read_a_run_at_a_url(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", url, str(tmp_path / "here"), "--no-again"]) == 0
    assert simfl.load(url).summary["weights_sha256"] == simfl.load(tmp_path / "here").summary["weights_sha256"]
    assert main(["watch", url, "--once"]) == 0
    assert "round 2 of 2" in capsys.readouterr().out
    assert main(["table", url, str(tmp_path / "here")]) == 0
    assert "| small |" in capsys.readouterr().out
    assert main(["report", url]) == 0
    assert (tmp_path / "report.html").exists()
    assert main(["table", f"memory://read{tmp_path}/none"]) == 2
    assert "neither a run nor a sweep" in capsys.readouterr().err


def test_run_returns_the_results_at_a_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIMFL_CACHE", str(tmp_path))
    found = simfl.run(experiment("fedavg", rounds=1), f"memory://api{tmp_path}", backend="inline")
    assert len(found.rounds()) == 1


def test_watch_shows_all_runs_of_a_sweep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(json.dumps({**config.to_mapping(experiment("fedavg", rounds=1)), "seeds": [1, 2]}))
    assert main(["sweep", str(file), "--out", str(tmp_path / "s"), "--backend", "inline"]) == 0
    assert main(["watch", str(tmp_path / "s")]) == 0
    shown = capsys.readouterr().out
    assert "2 runs: 2 completed" in shown
    assert "seed-1" in shown
    log = tmp_path / "s" / "runs" / "seed-2" / "log.jsonl"
    log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:-1]))  # as while it runs on another machine
    logs = SweepLogs(tmp_path / "s")
    assert [row.status for row in logs.rows()] == ["completed", "running"]
    JsonLines(log).append({"time": 1.0, "event": "finished", "status": "completed"})
    assert all_ended(logs.rows())
