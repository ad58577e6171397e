"""Checkpoints are written completely or not at all."""

import errno
import itertools
import json
import os
import re
import shutil

import pytest
import torch

from simfl import files
from simfl.errors import RunError
from simfl.runs.checkpoint import drop_after, latest, read, steps, write
from simfl.runs.folder import FORMAT
from simfl.weights import sha256


def tensors(step):
    return {
        "w": torch.full((3, 2), step / 3).t(),
        "half": torch.tensor([1.5, step]).bfloat16(),
        "big": torch.tensor(2**62 + step),
        "none": torch.empty(0, 4),
    }


def values(step):
    return {"round": step, "client_states": {"7": "digest"}, "loss": 0.1 + 0.2 * step, "phase": "é"}


def put(folder, step):
    return write(folder, step, tensors(step), values(step), {"seconds": 1.5})


def is_whole(found, step):
    """Return whether a checkpoint is that of this step, bit for bit."""
    return found.step == step and found.values == values(step) and sha256(found.tensors) == sha256(tensors(step))


def test_without_a_checkpoint_latest_returns_none(tmp_path):
    assert latest(tmp_path) is None
    assert latest(tmp_path / "absent") is None


def test_a_checkpoint_is_read_back_bit_identical(tmp_path):
    digest = put(tmp_path / "checkpoints", 3)
    found = latest(tmp_path / "checkpoints")
    assert is_whole(found, 3)
    assert list(found.tensors) == list(tensors(3))
    assert {t.dtype for t in found.tensors.values()} == {torch.float32, torch.bfloat16, torch.int64}
    assert (found.notes, found.warning, found.state_sha256) == ({"seconds": 1.5}, "", digest)
    assert sorted(p.name for p in (tmp_path / "checkpoints" / "000003").iterdir()) == [
        "digests.json",
        "notes.json",
        "state.json",
        "state.safetensors",
    ]


def test_the_newest_two_checkpoints_are_kept_and_temporary_folders_deleted(tmp_path):
    (tmp_path / f"{files.TEMP}left over").mkdir()
    for step in (0, 1, 5, 1_000_000):
        put(tmp_path, step)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["000005", "1000000"]
    assert latest(tmp_path).step == 1_000_000


def test_state_sha256_covers_tensors_and_values_but_not_notes(tmp_path):
    first = write(tmp_path, 1, tensors(1), values(1), {"seconds": 1})
    assert write(tmp_path, 2, tensors(1), dict(reversed(values(1).items())), {"seconds": 2}) == first
    assert write(tmp_path, 3, tensors(2), values(1)) != first
    assert write(tmp_path, 4, tensors(1), values(2)) != first


def test_an_equal_state_of_the_same_step_is_not_written_again(tmp_path, monkeypatch):
    put(tmp_path, 1)
    monkeypatch.setattr(os, "replace", None)
    assert put(tmp_path, 1) == latest(tmp_path).state_sha256


def test_a_different_state_of_the_same_step_replaces_the_checkpoint(tmp_path):
    write(tmp_path, 1, tensors(9), values(9))
    put(tmp_path, 1)
    assert is_whole(latest(tmp_path), 1)


FILES = ["state.safetensors", "state.json", "notes.json", "digests.json"]


def damage(path, at=-3):
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("how", [damage, lambda path: path.unlink(), lambda path: path.write_bytes(b"")])
def test_a_damaged_checkpoint_is_skipped_with_a_warning_of_one_line(tmp_path, name, how):
    put(tmp_path, 1)
    put(tmp_path, 2)
    how(tmp_path / "000002" / name)
    found = latest(tmp_path)
    assert is_whole(found, 1)
    assert re.fullmatch(r"[^\n]*000002: damaged checkpoint: [^\n]*; using the previous checkpoint", found.warning)


def test_a_flipped_bit_in_any_file_is_detected(tmp_path):
    put(tmp_path, 1)
    for name in FILES:
        path = tmp_path / "000001" / name
        original = path.read_bytes()
        for at in range(len(original)):
            damage(path, at)
            try:
                found = read(tmp_path, 1)
            except RunError:
                pass
            else:  # a bit without meaning, such as padding of the header or the order of names
                assert is_whole(found, 1), (name, at)
            path.write_bytes(original)


def test_latest_raises_if_every_checkpoint_is_damaged(tmp_path):
    for step in (1, 2):
        put(tmp_path, step)
        damage(tmp_path / f"{step:06d}" / "state.json")
    with pytest.raises(
        RunError,
        match=r"^[^\n]*: no checkpoint can be restored: [^\n]*000002: damaged [^\n]*; [^\n]*000001: damaged [^\n]*$",
    ):
        latest(tmp_path)


def test_after_a_damaged_checkpoint_was_dropped_two_undamaged_ones_are_kept(tmp_path):
    for step in (1, 2, 3):
        put(tmp_path, step)
    damage(tmp_path / "000003" / "state.json")
    drop_after(tmp_path, latest(tmp_path).step)
    put(tmp_path, 4)
    assert steps(tmp_path) == [2, 4]
    assert is_whole(read(tmp_path, 2), 2)


def test_a_missing_step_raises_one_line(tmp_path):
    with pytest.raises(RunError, match=r"^[^\n]*000009: damaged checkpoint: [^\n]*$"):
        read(tmp_path, 9)


def test_a_full_disk_raises_one_line_and_keeps_the_previous_checkpoint(tmp_path, monkeypatch):
    put(tmp_path, 1)

    def full(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(RunError, match=r"^[^\n]*000002: No space left on device$"):
            put(tmp_path, 2)
    assert is_whole(latest(tmp_path), 1)
    assert [p.name for p in tmp_path.iterdir()] == ["000001"]


class Killed(BaseException):
    """The process was killed; no handler runs."""


def killed_at(monkeypatch, n, after):
    """Kill the process before or after the n-th file operation from now."""
    counter = itertools.count()

    def watched(operation):
        def call(*args, **kwargs):
            number = next(counter)
            if number > n or (number == n and not after):
                raise Killed
            result = operation(*args, **kwargs)
            if number == n:
                raise Killed
            return result

        return call

    for module, name in [(os, "fsync"), (os, "replace"), (os, "mkdir"), (shutil, "rmtree")]:
        monkeypatch.setattr(module, name, watched(getattr(module, name)))


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("before", [(), (1,), (1, 2), (1, 2, 3)])
def test_after_a_kill_at_any_file_operation_the_previous_or_the_new_checkpoint_is_found(
    tmp_path, monkeypatch, before, after
):
    """Write checkpoints of the steps `before`, then kill the process while it writes step 3."""
    survived = 0
    for n in itertools.count():
        folder = tmp_path / str(n)
        for step in before:
            put(folder, step)
        if 3 in before:
            damage(folder / "000003" / "state.json")
        with monkeypatch.context() as patch:
            killed_at(patch, n, after)
            try:
                put(folder, 3)
                break
            except Killed:
                pass
        found = latest(folder)
        previous = max((step for step in before if step < 3), default=None)
        if found is None:
            assert previous is None
        else:
            assert is_whole(found, found.step)
            assert found.step in (previous, 3)
            survived += found.step == 3
        put(folder, 4)  # the run continues
        assert is_whole(latest(folder), 4)
        assert not list(folder.glob(f"{files.TEMP}*"))
    assert n >= 8  # mkdir, sync of four files and the folder, rename, sync of its entry
    assert survived >= 1


def test_everything_is_synced_before_the_checkpoint_is_renamed(tmp_path, monkeypatch):
    calls = []
    for name in ("fsync", "replace"):
        operation = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *a, name=name, op=operation: (calls.append(name), op(*a))[1])
    put(tmp_path, 1)
    assert calls == ["fsync"] * 5 + ["replace", "fsync"]


def test_checkpoints_contain_no_pickles(tmp_path):
    put(tmp_path, 1)
    assert {p.suffix for p in (tmp_path / "000001").iterdir()} == {".json", ".safetensors"}


@pytest.mark.parametrize("found", [None, 0, FORMAT + 1])
def test_a_checkpoint_of_another_format_is_refused_and_not_skipped(tmp_path, found):
    put(tmp_path, 1)
    put(tmp_path, 2)
    path = tmp_path / "000002" / "digests.json"
    digests = {name: value for name, value in json.loads(path.read_text()).items() if name != "format"}
    path.write_text(json.dumps(digests | ({} if found is None else {"format": found})))
    shown = "no format number" if found is None else f"format {found}"
    for call in (lambda: read(tmp_path, 2), lambda: latest(tmp_path)):
        with pytest.raises(
            RunError, match=rf"^[^\n]*000002/digests.json: {shown} found, format {FORMAT} expected[^\n]*$"
        ):
            call()
