"""A run folder of another format is refused in one line, by every command that reads it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fakes import Stopping, experiment, run

from simfl import config
from simfl.cli import main
from simfl.errors import RunError
from simfl.json_files import seal
from simfl.runs import checkpoint
from simfl.runs.folder import FORMAT
from simfl.runs.manifest import RunManifest
from simfl.runs.results import Run
from simfl.runs.snapshot import Snapshot

OLD_EXPERIMENT = "name: toy\nexactness: strict\ncohort:\n  way: loop\n"
OLD_MANIFEST = {"simfl": "0.0.1", "identity": {"way": "loop", "width": 2}, "resumes": []}


@pytest.fixture(params=[None, FORMAT + 1], ids=["without a number", "newer"])
def other(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A small folder as another version of simfl left it."""
    folder = tmp_path / "other"
    (folder / "checkpoints" / "000001").mkdir(parents=True)
    (folder / "memory").mkdir()
    manifest = OLD_MANIFEST if request.param is None else {"format": request.param, **OLD_MANIFEST}
    (folder / "experiment.yaml").write_text(OLD_EXPERIMENT)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (folder / "summary.json").write_text(json.dumps({"status": "completed"}))
    (folder / "log.jsonl").write_text(json.dumps({"time": 1.0, "event": "started"}) + "\n")
    return folder


COMMANDS = {
    "report": ["report", "FOLDER"],
    "table": ["table", "FOLDER"],
    "watch": ["watch", "--once", "FOLDER"],
    "diff": ["diff", "FOLDER", "FOLDER"],
    "replay": ["replay", "FOLDER", "--round", "1", "--client", "0"],
    "fork": ["fork", "FOLDER", "--at", "1"],
    "resume": ["run", "EXPERIMENT", "--out", "FOLDER", "--resume", "--backend", "inline"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_refuse_another_format_in_one_line(
    other: Path, tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "toy.yaml"
    path.write_text(config.dump(experiment()))
    names = {"FOLDER": str(other), "EXPERIMENT": str(path)}
    before = sorted(other.rglob("*"))
    assert main([names.get(word, word) for word in COMMANDS[command]]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"simfl: {other}/manifest.json: ")
    assert f"found, format {FORMAT} expected" in captured.err
    assert captured.err.count("\n") == 1
    assert sorted(other.rglob("*")) == before


@pytest.mark.parametrize("command", ["report", "table", "dashboard"])
def test_a_sweep_of_another_format_is_refused_in_one_line(
    tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sweep.json").write_text(json.dumps({"name": "s", "runs": [], "table": None}))
    assert main([command, str(tmp_path)]) == 2
    line = capsys.readouterr().err
    assert line.startswith(f"simfl: {tmp_path}/sweep.json: no format number found, format {FORMAT} expected")
    assert line.count("\n") == 1


def test_loading_refuses_another_format(other: Path) -> None:
    with pytest.raises(RunError, match=f"found, format {FORMAT} expected"):
        Run(other)


def test_resuming_refuses_another_format(other: Path) -> None:
    with pytest.raises(RunError, match=f"found, format {FORMAT} expected"):
        run(experiment(), other, resume=True)


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (None, "manifest.json is missing; the folder is incomplete$"),
        ("{", "manifest.json: damaged: [^\n]*$"),
        (json.dumps({"format": FORMAT}), "manifest.json: damaged: the content does not match its hash$"),
        (json.dumps(seal({}, FORMAT)), "manifest.json: damaged: KeyError 'simfl'$"),
    ],
)
def test_a_missing_or_damaged_manifest_raises_one_line(tmp_path: Path, content: str | None, line: str) -> None:
    run(experiment(rounds=2), tmp_path, display=Stopping(1))
    path = tmp_path / "manifest.json"
    path.unlink()
    if content is not None:
        path.write_text(content)
    with pytest.raises(RunError, match=line):
        run(experiment(rounds=2), tmp_path, resume=True)


def test_a_checkpoint_without_a_value_raises_one_line(tmp_path: Path) -> None:
    run(experiment(rounds=2), tmp_path, display=Stopping(1))
    found = Run(tmp_path)
    assert RunManifest.read(tmp_path) == found.manifest

    stored = checkpoint.latest(tmp_path / "checkpoints")
    assert stored is not None
    del stored.values["missed"]
    with pytest.raises(RunError, match=r"^checkpoint after round 1: the value 'missed' is missing$"):
        Snapshot.restore(stored)
