"""Client states that a thread writes: same bits, bounded memory, and on the disk before a checkpoint refers to them."""

from __future__ import annotations

from pathlib import Path
from threading import Event

import pytest
import torch
from fakes import Killed, experiment, run, traces

from simfl import files
from simfl.client_state import FileClientStore, background
from simfl.client_state.background import BackgroundWriter
from simfl.errors import RunError
from simfl.experiment import Checkpoint
from simfl.protocol import State
from simfl.runs import checkpoint

CASE = experiment("scaffold", rounds=4, checkpoint=Checkpoint(rounds=1, seconds=0.0))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("whole")
    run(CASE, folder)
    return traces(folder)


@pytest.fixture
def all_in_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "SMALL_BYTES", 0)


def state(value: float) -> State:
    return {"algorithm:control": {"w": torch.full((1000,), value)}}


@pytest.mark.usefixtures("all_in_the_thread")
@pytest.mark.parametrize("step", [2, 3])
def test_a_run_that_dies_is_resumed_with_the_same_bits(
    whole: dict[str, str], step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process dies when the states of a round are written, and the checkpoint that refers to them is not."""
    write = checkpoint.write

    def died(folder, at, *rest):
        if at == step:
            raise Killed
        return write(folder, at, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "write", died)
        with pytest.raises(Killed):
            run(CASE, tmp_path)
    run(CASE, tmp_path, resume=True)
    assert traces(tmp_path) == whole


def test_states_are_on_the_disk_before_a_checkpoint_refers_to_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync, write = files.sync_file, checkpoint.write
    synced: set[str] = set()
    late: list[str] = []

    def watched(folder, at, tensors, values, *rest):
        store = FileClientStore(tmp_path / "client_states")
        late.extend({store.pack_of(digest).path.name for digest in values["client_states"].values()} - synced)
        return write(folder, at, tensors, values, *rest)

    monkeypatch.setattr(files, "sync_file", lambda path: (sync(path), synced.add(path.name)))
    monkeypatch.setattr(checkpoint, "write", watched)
    run(CASE, tmp_path)
    assert synced
    assert not late


@pytest.mark.usefixtures("all_in_the_thread")
def test_states_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of states of 4 kB with a bound of 10 kB, two wait, and the third is taken once the first was written."""
    monkeypatch.setattr(background, "WAITING_BYTES", 10_000)
    begun, going, written = Event(), Event(), []

    def write(one: State) -> str:
        begun.set()
        going.wait(20)
        written.append(float(one["algorithm:control"]["w"][0]))
        return f"digest {written[-1]:g}"

    with BackgroundWriter(write) as writer:
        writer.add(7, state(1.0))
        writer.add(5, state(2.0))
        assert begun.wait(20)
        assert not written
        going.set()
        writer.add(6, state(3.0))
        assert written[0] == 1.0
        assert writer.digests() == {7: "digest 1", 5: "digest 2", 6: "digest 3"}


@pytest.mark.usefixtures("all_in_the_thread")
def test_a_disk_that_refuses_a_state_is_reported() -> None:
    def write(one: State) -> str:
        raise RunError("the disk is full")

    with BackgroundWriter(write) as writer:
        writer.add(1, state(1.0))
        with pytest.raises(RunError, match="the disk is full"):
            writer.digests()
