"""Resuming from the last checkpoint, after a kill at any file operation; runs that do not match are refused."""

import errno
import itertools
import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from fakes import Killed, Official, Stopping, Toy, experiment, run, then, traces

from simfl import files
from simfl.client_state import EMPTY, FileClientStore
from simfl.client_state.packs import Pack
from simfl.data.partition.partitioners import Iid
from simfl.errors import ConfigError, RunError
from simfl.json_files import body_of
from simfl.runs import checkpoint, tables
from simfl.runs.folder import read_json, write_json
from simfl.runs.manifest import text_sha256

TOY = Toy(sizes=(3, 9, 2), valid=10)
SMALL = experiment("scaffold", data=TOY, clients_per_round=2, participation=None)
LINE = r"^[^\n]*"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    run(SMALL, folder)
    return traces(folder)


OPERATIONS = [(os, "fsync"), (os, "replace"), (os, "mkdir"), (shutil, "rmtree"), (Path, "unlink")]


def killed_at(monkeypatch, number, after):
    """Kill the process before or after this file operation; return the counted operations."""
    counter = itertools.count()
    counted = []

    def watched(operation):
        def call(*args, **kwargs):
            counted.append(next(counter))
            if number is not None and (counted[-1] > number or (counted[-1] == number and not after)):
                raise Killed
            result = operation(*args, **kwargs)
            if counted[-1] == number:
                raise Killed
            return result

        return call

    for owner, name in OPERATIONS:
        monkeypatch.setattr(owner, name, watched(getattr(owner, name)))
    return counted


def kill_and_resume(folder, monkeypatch, number, after):
    """Kill a run at a file operation and resume it; return whether the run got that far."""
    with monkeypatch.context() as patch:
        killed_at(patch, number, after)
        try:
            run(SMALL, folder)
            return False
        except Killed:
            pass
    run(SMALL, folder, resume=(folder / "experiment.yaml").exists())
    return True


@pytest.mark.parametrize("after", [False, True], ids=["before it", "after it"])
def test_a_run_killed_at_a_file_operation_resumes_to_the_same_result(after, whole, tmp_path, monkeypatch):
    """Test every 23rd of about 120 operations; the slow test covers all."""
    alive = [kill_and_resume(tmp_path / str(n), monkeypatch, n, after) for n in range(11 * after, 120, 23)]
    assert all(alive)
    for folder in tmp_path.iterdir():
        assert traces(folder) == whole, folder


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True], ids=["before it", "after it"])
def test_a_run_killed_at_every_file_operation_resumes_to_the_same_result(after, whole, tmp_path, monkeypatch):
    for number in itertools.count():
        folder = tmp_path / str(number)
        if not kill_and_resume(folder, monkeypatch, number, after):
            break
        assert traces(folder) == whole, number
        shutil.rmtree(folder)
    assert number > 120


def test_client_states_that_no_checkpoint_needs_are_deleted(tmp_path):
    run(SMALL, tmp_path, display=Stopping(2))
    run(SMALL, tmp_path, resume=True)
    needed = set()
    for step in checkpoint.steps(tmp_path / "checkpoints"):
        needed |= set(checkpoint.read(tmp_path / "checkpoints", step).values["client_states"].values())
    packs = [Pack.open(path) for path in (tmp_path / "client_states").iterdir()]
    assert needed - {EMPTY} <= set().union(*(pack.names for pack in packs))
    assert all(needed & pack.names for pack in packs)
    assert checkpoint.steps(tmp_path / "checkpoints") == [2, 3]


def test_resuming_a_finished_run_changes_nothing(whole, tmp_path):
    first = run(SMALL, tmp_path)
    again = run(SMALL, tmp_path, resume=True)
    assert traces(tmp_path) == whole
    assert (again["final"], again["initial"]) == (first["final"], first["initial"])
    assert set(again["final"]) == {"accuracy", "loss"}


def test_a_run_killed_before_the_summary_keeps_its_scores(tmp_path, monkeypatch):
    expected = run(SMALL, tmp_path / "whole")
    monkeypatch.setattr(tables, "write_table", killed)
    with pytest.raises(Killed):
        run(SMALL, tmp_path / "killed")
    monkeypatch.undo()
    summary = run(SMALL, tmp_path / "killed", resume=True)
    assert summary["final"] == expected["final"]


def killed(*_):
    raise Killed


def test_seconds_of_all_sessions_are_added(tmp_path):
    first = run(SMALL, tmp_path, display=Stopping(1))
    second = run(SMALL, tmp_path, resume=True)
    assert second["seconds"]["total"] > first["seconds"]["total"]


def test_the_manifest_has_the_environment_of_every_resume(tmp_path):
    run(SMALL, tmp_path, display=Stopping(1))
    with pytest.raises(Killed):
        run(SMALL, tmp_path, resume=True, display=Stopping(2, scoring=True, error=Killed))
    assert run(SMALL, tmp_path, resume=True)["resumed_at"] == [1, 1]
    resumes = json.loads((tmp_path / "manifest.json").read_text())["resumes"]
    assert [resume["step"] for resume in resumes] == [1, 1]
    assert {"torch", "ray"} <= resumes[0]["libraries"].keys()


# runs that do not match are refused


@pytest.mark.parametrize("left", [None, "manifest.json", "partition.json"])
def test_a_run_that_has_not_begun_starts_when_it_is_resumed(left, tmp_path):
    """A killed process leaves no folder, or one whose experiment is not written yet."""
    run(SMALL, tmp_path / "whole")
    if left is not None:
        (tmp_path / "r").mkdir()
        (tmp_path / "r" / left).write_text("{")
    display = Stopping()
    assert run(SMALL, tmp_path / "r", resume=True, display=display)["resumed_at"] == []
    assert f"there is no run to resume in {tmp_path / 'r'}: it starts" in display.messages
    assert traces(tmp_path / "r") == traces(tmp_path / "whole")


def test_a_folder_that_holds_a_run_is_not_overwritten(tmp_path):
    run(SMALL, tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    with pytest.raises(
        RunError, match=f"{LINE}: the folder holds a run already; resume it with --resume, or give another --out$"
    ):
        run(SMALL, tmp_path)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_a_run_that_another_process_uses_is_not_resumed(tmp_path):
    run(SMALL, tmp_path)
    with files.locked(tmp_path), pytest.raises(RunError, match=f"{LINE}: process {os.getpid()} is using this run"):
        run(SMALL, tmp_path, resume=True)
    run(SMALL, tmp_path, resume=True)


CHANGES = {
    "seed: 42": replace(SMALL, seed=43),
    "learning_rate: 0.1": experiment("scaffold", learning_rate=0.2, data=SMALL.data, clients_per_round=2),
    "valid: 10": replace(SMALL, data=replace(TOY, valid=11)),
    "phases": then(SMALL, SMALL),
}


@pytest.mark.parametrize("line", CHANGES)
def test_a_changed_experiment_is_refused_with_the_line_that_differs(line, tmp_path):
    run(SMALL, tmp_path, display=Stopping(1))
    before = json.loads((tmp_path / "manifest.json").read_text())
    with pytest.raises(RunError) as refused:
        run(CHANGES[line], tmp_path, resume=True)
    assert "\n" not in str(refused.value)
    old, new = re.search(r"the stored run has '(.*)', this experiment has '(.*)'$", str(refused.value)).groups()
    assert old != new
    assert line == "phases" or line in old
    assert json.loads((tmp_path / "manifest.json").read_text()) == before  # a refused resume is not recorded


def test_a_run_of_an_older_simfl_without_newer_settings_resumes(whole, tmp_path):
    """Settings that did not exist when the run began have their defaults."""
    with pytest.raises(Killed):
        run(SMALL, tmp_path, display=Stopping(1, error=Killed))
    text = (tmp_path / "experiment.yaml").read_text()
    older = (
        text.replace("  time: null\n", "").replace("model_parallel: 1, ", "").replace("clients: {profile: null}\n", "")
    )
    assert older.count("\n") == text.count("\n") - 2
    (tmp_path / "experiment.yaml").write_text(older)
    manifest = body_of(read_json(tmp_path / "manifest.json"))
    write_json(tmp_path / "manifest.json", manifest | {"experiment_sha256": text_sha256(older)})
    with pytest.raises(RunError, match="the stored run has 'seed: 42', this experiment has 'seed: 7'"):
        run(replace(SMALL, seed=7), tmp_path, resume=True)
    run(SMALL, tmp_path, resume=True)
    assert traces(tmp_path) == whole


def test_different_data_with_the_same_settings_are_refused(tmp_path, monkeypatch):
    run(SMALL, tmp_path, display=Stopping(1))
    split = Toy._split
    monkeypatch.setattr(Toy, "_split", lambda self, stream, sizes: split(self, stream + 10, sizes))
    with pytest.raises(RunError, match=f"{LINE}: data_sha256 was '[0-9a-f]+' at the start, now '[0-9a-f]+'$"):
        run(SMALL, tmp_path, resume=True)


def test_a_different_partition_with_the_same_settings_is_refused(tmp_path, monkeypatch):
    run(SMALL, tmp_path, display=Stopping(1))
    monkeypatch.setattr(Official, "split", lambda self, split, seed: Iid(clients=3).split(split, seed))
    with pytest.raises(RunError, match=f"{LINE}: partition_sha256 was '[0-9a-f]+' at the start, now '[0-9a-f]+'$"):
        run(SMALL, tmp_path, resume=True)


def test_a_different_device_is_refused(tmp_path):
    run(SMALL, tmp_path, display=Stopping(1))
    path = tmp_path / "manifest.json"
    stored = body_of(read_json(path))
    stored["identity"]["device"] = "cuda"
    write_json(path, stored)
    with pytest.raises(RunError, match=f"{LINE}: device was 'cuda' at the start, now 'cpu'$"):
        run(SMALL, tmp_path, resume=True)


def damage(path):
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)


def test_after_a_damaged_checkpoint_the_run_resumes_from_the_previous_one_with_a_warning(whole, tmp_path):
    run(SMALL, tmp_path, display=Stopping(2))
    damage(tmp_path / "checkpoints" / "000002" / "state.safetensors")
    display = Stopping()
    summary = run(SMALL, tmp_path, resume=True, display=display)
    assert re.fullmatch(r".*000002: damaged checkpoint: .*; using the previous checkpoint", display.messages[0])
    assert summary["resumed_at"] == [1]
    assert traces(tmp_path) == whole


def test_a_finished_run_with_a_damaged_last_checkpoint_resumes_from_the_previous_one(whole, tmp_path):
    """The client states of the previous checkpoint still exist."""
    run(SMALL, tmp_path)
    damage(tmp_path / "checkpoints" / "000003" / "state.json")
    assert run(SMALL, tmp_path, resume=True)["resumed_at"] == [2]
    assert traces(tmp_path) == whole


def test_after_a_resume_the_previous_checkpoint_can_still_be_used(whole, tmp_path):
    run(SMALL, tmp_path, display=Stopping(2))
    run(SMALL, tmp_path, resume=True, display=Stopping(3))
    damage(tmp_path / "checkpoints" / "000003" / "state.safetensors")
    assert run(SMALL, tmp_path, resume=True)["resumed_at"] == [2, 2]
    assert traces(tmp_path) == whole


def test_a_run_with_only_damaged_checkpoints_is_refused(tmp_path):
    run(SMALL, tmp_path, display=Stopping(2))
    for step in (1, 2):
        damage(tmp_path / "checkpoints" / f"{step:06d}" / "state.json")
    with pytest.raises(
        RunError, match=f"{LINE}: no checkpoint can be restored: .*000002: damaged[^\n]*000001: damaged[^\n]*$"
    ):
        run(SMALL, tmp_path, resume=True)


@pytest.mark.parametrize("spoil", [damage, Path.unlink])
def test_a_damaged_or_missing_client_state_is_named_before_the_run_resumes(tmp_path, spoil):
    case = replace(SMALL, phases=(replace(SMALL.phases[0], clients_per_round=3),))
    run(case, tmp_path, display=Stopping(2))
    states = [checkpoint.read(tmp_path / "checkpoints", step).values["client_states"]["1"] for step in (1, 2)]
    spoil(FileClientStore(tmp_path / "client_states").pack_of(states[1]).path)
    display = Stopping(3)
    run(case, tmp_path, resume=True, display=display)  # from the previous checkpoint
    line = f"{LINE}client state [0-9a-f]{{64}} is (damaged|missing)[^\n]*; using the previous checkpoint$"
    assert re.match(line, display.messages[0])
    for path in (tmp_path / "client_states").iterdir():
        spoil(path)
    with pytest.raises(RunError, match=f"{LINE}: no checkpoint can be restored: [^\n]*client state [^\n]* is [^\n]*$"):
        run(case, tmp_path, resume=True)


# errors of the disk


def refusing(monkeypatch, number, when):
    """Make the disk fail with this error number for paths that satisfy `when`."""
    opened = open

    def refused(path, mode="r", *args, **kwargs):
        if set(mode) & set("wa") and when(Path(path)):
            raise OSError(number, os.strerror(number), str(path))
        return opened(path, mode, *args, **kwargs)

    monkeypatch.setattr("builtins.open", refused)


@pytest.mark.parametrize("name", ["state.safetensors", "rounds", "client_states", "log.jsonl", "manifest.json"])
def test_a_full_disk_raises_one_line_and_the_run_resumes_once_there_is_room(name, whole, tmp_path, monkeypatch):
    run(SMALL, tmp_path, display=Stopping(1))
    with monkeypatch.context() as patch:
        refusing(patch, errno.ENOSPC, lambda path: name in str(path.relative_to(tmp_path)))
        with pytest.raises(RunError, match=f"{LINE}: No space left on device$"):
            run(SMALL, tmp_path, resume=True)
    run(SMALL, tmp_path, resume=True)
    assert traces(tmp_path) == whole
    assert not list(tmp_path.rglob(f"{files.TEMP}*"))


def test_a_folder_that_cannot_be_written_raises_one_line(tmp_path, monkeypatch):
    refusing(monkeypatch, errno.EACCES, lambda path: tmp_path in path.parents)
    with pytest.raises(RunError, match=f"{LINE}: Permission denied$"):
        run(SMALL, tmp_path / "r")


def test_a_file_in_the_place_of_the_folder_raises_one_line(tmp_path):
    (tmp_path / "r").write_text("")
    with pytest.raises(RunError, match=f"{LINE}r: a file is in the place of a folder$"):
        run(SMALL, tmp_path / "r")


def test_no_folder_is_written_for_an_experiment_that_cannot_run(tmp_path):
    case = replace(SMALL, phases=(replace(SMALL.phases[0], clients_per_round=4),))
    with pytest.raises(
        ConfigError, match=r"^phases\.0\.clients_per_round: 4 requested, but the partition has 3 clients$"
    ):
        run(case, tmp_path / "r")
    assert not (tmp_path / "r").exists()
