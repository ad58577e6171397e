"""Checkpoints are written by a thread while the next round is trained, and a round counts once its checkpoint does."""

from __future__ import annotations

from pathlib import Path
from threading import Event

import pytest
from fakes import Killed, experiment, run, traces

from simfl.errors import RunError
from simfl.experiment import Checkpoint
from simfl.runs import checkpoint
from simfl.runtime.worker import Worker

CASE = experiment("scaffold", rounds=4, checkpoint=Checkpoint(rounds=1, seconds=0.0))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("whole")
    run(CASE, folder)
    return traces(folder)


def test_a_checkpoint_is_written_while_the_next_round_is_trained(
    whole: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The write of step 2 waits until a client of round 3 is trained."""
    write, train, begun, waited = checkpoint.write, Worker.train, Event(), []

    def watched_train(self, plan, *rest):
        if plan.round == 2:
            begun.set()
        return train(self, plan, *rest)

    def watched_write(folder, step, *rest):
        if step == 2:
            waited.append(begun.wait(20))
        return write(folder, step, *rest)

    monkeypatch.setattr(Worker, "train", watched_train)
    monkeypatch.setattr(checkpoint, "write", watched_write)
    run(CASE, tmp_path)
    assert waited == [True]
    assert traces(tmp_path) == whole


@pytest.mark.parametrize("step", [0, 2])
def test_a_run_that_dies_before_its_checkpoint_is_complete_is_resumed_from_the_one_before(
    whole: dict[str, str], step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files of step 2 never get their name, while round 3 is trained and the process dies."""
    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "write", _dying(checkpoint.write, step))
        with pytest.raises(Killed):
            run(CASE, tmp_path)
    found = checkpoint.latest(tmp_path / "checkpoints")
    assert (found.step if found else None) == {0: None, 2: 1}[step]
    run(CASE, tmp_path, resume=True)
    assert traces(tmp_path) == whole


def _dying(write, step):
    def died(folder, at, *rest):
        if at >= step:
            raise Killed
        return write(folder, at, *rest)

    return died


def test_rows_of_a_checkpoint_that_the_disk_refuses_are_kept(
    whole: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run fails one round later; what it writes then, or when it is resumed, has every row."""
    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "write", _full_once(checkpoint.write, 2))
        with pytest.raises(RunError, match="the disk is full"):
            run(CASE, tmp_path)
    run(CASE, tmp_path, resume=True)
    assert traces(tmp_path) == whole


def _full_once(write, step):
    refused = []

    def written(folder, at, *rest):
        if at == step and not refused:
            refused.append(at)
            raise RunError("the disk is full")
        return write(folder, at, *rest)

    return written
