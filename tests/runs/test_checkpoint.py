"""Commits: whole or not at all."""

import errno
import itertools
import os
import re
import shutil

import pytest
import torch

from simfl import files
from simfl.errors import RunError
from simfl.runs.checkpoint import commit, drop_after, latest, read, steps
from simfl.weights import sha256


def tensors(step):
    return {
        "w": torch.full((3, 2), step / 3).t(),
        "half": torch.tensor([1.5, step]).bfloat16(),
        "big": torch.tensor(2**62 + step),
        "none": torch.empty(0, 4),
    }


def facts(step):
    return {"round": step, "memory": {"7": "digest"}, "loss": 0.1 + 0.2 * step, "phase": "é"}


def put(folder, step):
    return commit(folder, step, tensors(step), facts(step), {"seconds": 1.5})


def whole(found, step):
    """Whether what was found is the commit of this step, bit for bit."""
    return found.step == step and found.facts == facts(step) and sha256(found.tensors) == sha256(tensors(step))


def test_no_commit_is_none(tmp_path):
    assert latest(tmp_path) is None
    assert latest(tmp_path / "absent") is None


def test_a_commit_comes_back_bit_for_bit(tmp_path):
    digest = put(tmp_path / "checkpoints", 3)
    found = latest(tmp_path / "checkpoints")
    assert whole(found, 3)
    assert list(found.tensors) == list(tensors(3))
    assert {t.dtype for t in found.tensors.values()} == {torch.float32, torch.bfloat16, torch.int64}
    assert (found.notes, found.warning, found.state_sha256) == ({"seconds": 1.5}, "", digest)
    assert sorted(p.name for p in (tmp_path / "checkpoints" / "000003").iterdir()) == [
        "digests.json",
        "state.json",
        "notes.json",
        "state.safetensors",
    ]


def test_the_newest_two_are_kept_and_temporary_ones_go(tmp_path):
    (tmp_path / f"{files.TEMP}left over").mkdir()
    for step in (0, 1, 5, 1_000_000):
        put(tmp_path, step)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["000005", "1000000"]
    assert latest(tmp_path).step == 1_000_000


def test_state_sha256_is_of_tensors_and_facts_and_not_of_notes(tmp_path):
    first = commit(tmp_path, 1, tensors(1), facts(1), {"seconds": 1})
    assert commit(tmp_path, 2, tensors(1), dict(reversed(facts(1).items())), {"seconds": 2}) == first
    assert commit(tmp_path, 3, tensors(2), facts(1)) != first
    assert commit(tmp_path, 4, tensors(1), facts(2)) != first


def test_the_same_state_at_the_same_step_is_not_written_again(tmp_path, monkeypatch):
    put(tmp_path, 1)
    monkeypatch.setattr(os, "replace", None)
    assert put(tmp_path, 1) == latest(tmp_path).state_sha256


def test_another_state_at_the_same_step_replaces_it(tmp_path):
    commit(tmp_path, 1, tensors(9), facts(9))
    put(tmp_path, 1)
    assert whole(latest(tmp_path), 1)


FILES = ["state.safetensors", "state.json", "notes.json", "digests.json"]


def damage(path, at=-3):
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("how", [damage, lambda path: path.unlink(), lambda path: path.write_bytes(b"")])
def test_a_damaged_commit_is_passed_over_and_said_so_in_one_line(tmp_path, name, how):
    put(tmp_path, 1)
    put(tmp_path, 2)
    how(tmp_path / "000002" / name)
    found = latest(tmp_path)
    assert whole(found, 1)
    assert re.fullmatch(r"[^\n]*000002: damaged checkpoint: [^\n]*; using the previous checkpoint", found.warning)


def test_a_flipped_bit_anywhere_is_noticed(tmp_path):
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
            else:  # a bit of no meaning, such as the padding of the header or the order of names
                assert whole(found, 1), (name, at)
            path.write_bytes(original)


def test_when_every_commit_is_damaged_the_run_is_refused(tmp_path):
    for step in (1, 2):
        put(tmp_path, step)
        damage(tmp_path / f"{step:06d}" / "state.json")
    with pytest.raises(RunError, match=r"^[^\n]*: every checkpoint is damaged: 1, 2$"):
        latest(tmp_path)


def test_a_run_resumed_before_a_damaged_commit_keeps_two_whole_ones(tmp_path):
    for step in (1, 2, 3):
        put(tmp_path, step)
    damage(tmp_path / "000003" / "state.json")
    drop_after(tmp_path, latest(tmp_path).step)
    put(tmp_path, 4)
    assert steps(tmp_path) == [2, 4]
    assert whole(read(tmp_path, 2), 2)


def test_a_missing_step_is_one_line(tmp_path):
    with pytest.raises(RunError, match=r"^[^\n]*000009: damaged checkpoint: [^\n]*$"):
        read(tmp_path, 9)


def test_a_full_disk_is_one_line_and_keeps_the_commit_before(tmp_path, monkeypatch):
    put(tmp_path, 1)

    def full(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(RunError, match=r"^[^\n]*000002: No space left on device$"):
            put(tmp_path, 2)
    assert whole(latest(tmp_path), 1)
    assert [p.name for p in tmp_path.iterdir()] == ["000001"]


class Killed(BaseException):
    """The process is gone: nothing after this runs, no handler either."""


def killed_at(monkeypatch, n, after):
    """The n-th file operation from now is the last, done or not done."""
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
def test_killed_at_any_file_operation_the_commit_before_or_the_new_one_is_found(tmp_path, monkeypatch, before, after):
    """`before`: steps committed earlier; step 3 is committed under fire, a second time where it is there already."""
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
            assert whole(found, found.step)
            assert found.step in (previous, 3)
            survived += found.step == 3
        put(folder, 4)  # and the run goes on
        assert whole(latest(folder), 4)
        assert not list(folder.glob(f"{files.TEMP}*"))
    assert n >= 8  # a folder, four files and itself synced, renamed, its entry synced
    assert survived >= 1


def test_everything_is_synced_before_the_commit_has_its_name(tmp_path, monkeypatch):
    calls = []
    for name in ("fsync", "replace"):
        operation = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *a, name=name, op=operation: (calls.append(name), op(*a))[1])
    put(tmp_path, 1)
    assert calls == ["fsync"] * 5 + ["replace", "fsync"]


def test_nothing_is_pickled(tmp_path):
    put(tmp_path, 1)
    assert {p.suffix for p in (tmp_path / "000001").iterdir()} == {".json", ".safetensors"}
