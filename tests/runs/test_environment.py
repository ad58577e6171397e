"""The environment of a run: what may change results is one warning at a resume, and a refusal if deterministic."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import Stopping, Toy, experiment, run, traces

from simfl.errors import RunError
from simfl.json_files import body_of
from simfl.runs import environment
from simfl.runs.environment import Environment, arithmetic, commit_of_simfl
from simfl.runs.folder import read_json, write_json
from simfl.runs.manifest import RunManifest

CASE = experiment("scaffold", data=Toy(sizes=(3, 9, 2), valid=10), clients_per_round=2, participation=None, rounds=2)
Change = Callable[[dict[str, Any]], object]
CHANGES: dict[str, Change] = {
    "torch was 2.0.0 at the start, now ": lambda m: m["libraries"].update(torch="2.0.0"),
    "peft was None at the start, now ": lambda m: m["libraries"].update(peft=None),
    "simfl was 0.0.1 at the start, now ": lambda m: m.update(simfl="0.0.1"),
    "python was 3.1 at the start, now ": lambda m: m.update(python="3.1"),
    "capability of the processor was ABACUS at the start, now ": lambda m: m["machine"].update(capability="ABACUS"),
    "the processor or its libraries round differently": lambda m: m["machine"].update(arithmetic="ab"),
}
OTHER = {"commit": "abcdef012345", "dirty": True}
HARMLESS: dict[str, Change] = {
    "": lambda m: m["libraries"].update(ray="2.0.0"),
    "commit of simfl was abcdef012345 with changes at the start, now ": lambda m: m.update(OTHER),
}


def stopped(folder: Path, change: Change, deterministic: bool) -> Any:
    """Run one round, change the manifest, and return the experiment."""
    case = replace(CASE, deterministic=deterministic)
    run(case, folder, display=Stopping(1))
    content = body_of(read_json(folder / "manifest.json"))
    change(content)
    write_json(folder / "manifest.json", content)
    return case


@pytest.mark.parametrize("line", CHANGES)
def test_every_change_that_may_alter_results_is_found(line: str) -> None:
    here = Environment.current()
    content = json.loads(json.dumps(asdict(here)))
    CHANGES[line](content)
    (found,) = Environment.from_json(content).differences(here, "cpu")
    assert found.startswith(line)
    assert list(here.differences(here, "cuda")) == []


def test_a_change_that_may_alter_results_is_a_warning_or_a_refusal(tmp_path: Path) -> None:
    line = next(iter(CHANGES))
    display = Stopping()
    run(stopped(tmp_path / "free", CHANGES[line], deterministic=False), tmp_path / "free", resume=True, display=display)
    (warning,) = [text for text in display.messages if line in text]
    assert re.fullmatch(r"[^\n]*: results may differ in their last bits from those of an uninterrupted run", warning)

    folder = tmp_path / "strict"
    case = stopped(folder, CHANGES[line], deterministic=True)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(RunError, match=rf"^[^\n]*: deterministic: true, but {line}[^\n]*$"):
        run(case, folder, resume=True)
    after = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert {path for path in after if before.get(path) != after[path]} <= {folder / ".lock"}


@pytest.mark.parametrize("line", HARMLESS)
def test_a_change_that_alters_no_result_is_never_a_refusal(line: str, tmp_path: Path) -> None:
    display = Stopping()
    case = stopped(tmp_path, HARMLESS[line], deterministic=True)
    run(case, tmp_path, resume=True, display=display)
    assert [text for text in display.messages if "at the start" in text] == [
        text for text in display.messages if line and line in text
    ]
    assert bool(display.messages) == bool(line)


def test_the_same_environment_is_no_message(tmp_path: Path) -> None:
    run(CASE, tmp_path / "whole")
    display = Stopping()
    run(stopped(tmp_path / "cut", lambda m: None, deterministic=False), tmp_path / "cut", resume=True, display=display)
    assert display.messages == []
    assert traces(tmp_path / "cut") == traces(tmp_path / "whole")


def test_another_gpu_matters_on_a_gpu_alone() -> None:
    here = Environment.current()
    there = replace(here, machine={**here.machine, "gpus": ["A", "A"]})
    assert list(there.differences(here, "cpu")) == []
    assert list(there.differences(here, "cuda")) == [
        f"GPU was A at the start, now {(here.machine['gpus'] or [None])[0]}"
    ]


@pytest.mark.slow
def test_settings_of_the_numerical_libraries_change_what_is_compared() -> None:
    """Each of the variables makes a library use other instructions, on processors that have several."""
    program = "from simfl.runs.environment import arithmetic; print(arithmetic())"
    variables: list[dict[str, str]] = [{}, {"MKL_CBWR": "COMPATIBLE"}, {"ATEN_CPU_CAPABILITY": "default"}]
    started = [
        subprocess.Popen([sys.executable, "-c", program], env={**os.environ, **more}, stdout=subprocess.PIPE, text=True)
        for more in variables
    ]
    same, *others = [process.communicate()[0].strip() for process in started]
    assert same == arithmetic()
    if torch.backends.cpu.get_cpu_capability() != "DEFAULT" and torch.backends.mkl.is_available():
        assert same not in others


def test_the_manifest_has_the_commit_of_simfl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(CASE, tmp_path, display=Stopping(1))
    found = RunManifest.read(tmp_path).environment
    commit, dirty = commit_of_simfl()
    assert (found.commit, found.dirty) == (commit, dirty)
    assert commit is None or re.fullmatch("[0-9a-f]{40}", commit)
    monkeypatch.setattr(environment, "GIT", ("no such program",))
    commit_of_simfl.cache_clear()
    assert commit_of_simfl() == (None, False)
    commit_of_simfl.cache_clear()
