"""Client states are files named by the hash of their content."""

import errno
import multiprocessing
import os
import time

import pytest
import torch

from simfl import client_state, files
from simfl.client_state import EMPTY, FileClientStore
from simfl.errors import RunError
from simfl.weights import flatten, sha256


def state(value, size=4):
    return {"control": {"w": torch.full((size,), float(value)), "steps": torch.tensor(3)}, "nothing": {}}


def same(a, b):
    return list(a) == list(b) and sha256(flatten(a)) == sha256(flatten(b))


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_stored_state_can_be_read_by_another_store(tmp_path):
    digest = FileClientStore(tmp_path).put(state(1))
    assert names(tmp_path) == [f"{digest}.safetensors"]
    assert same(FileClientStore(tmp_path).get(digest), state(1))


def test_a_view_is_stored_without_the_rest_of_its_tensor(tmp_path):
    stack = torch.arange(3_000.0).reshape(3, 1000)
    digest = FileClientStore(tmp_path).put({"a": {"w": stack[1]}})
    assert torch.equal(FileClientStore(tmp_path).get(digest)["a"]["w"], stack[1])
    assert (tmp_path / f"{digest}.safetensors").stat().st_size < 4_200


def test_equal_states_share_a_file_which_is_written_once(tmp_path):
    store = FileClientStore(tmp_path)
    first = store.put(state(1))
    path = tmp_path / f"{first}.safetensors"
    inode = path.stat().st_ino
    assert store.put_all([state(1), state(2), state(1)])[::2] == [first, first]
    assert path.stat().st_ino == inode
    assert len(names(tmp_path)) == 2


def test_an_empty_state_needs_no_file(tmp_path):
    store = FileClientStore(tmp_path)
    assert store.put({}) == EMPTY
    assert store.get(EMPTY) == {}
    assert names(tmp_path) == []


def test_the_cache_is_bounded_and_drops_the_least_recently_used_state(tmp_path, monkeypatch):
    reads = []
    read = FileClientStore._read
    monkeypatch.setattr(FileClientStore, "_read", lambda self, digest: (reads.append(digest), read(self, digest))[1])
    store = FileClientStore(tmp_path, cache_bytes=2 * (400 + 8))  # two states of 100 floats and a counter
    a, b, c = store.put_all([state(v, 100) for v in (1, 2, 3)])
    for digest, value in ((a, 1), (b, 2), (a, 1), (c, 3), (a, 1), (b, 2)):
        assert same(store.get(digest), state(value, 100))
    assert reads == [a, b, c, b]  # c replaced b, which was used before a


def test_a_state_larger_than_the_cache_can_be_read(tmp_path):
    store = FileClientStore(tmp_path, cache_bytes=10)
    assert same(store.get(store.put(state(1, 100))), state(1, 100))


def test_changes_of_a_returned_state_do_not_reach_the_store(tmp_path):
    store = FileClientStore(tmp_path)
    digest = store.put(state(1))
    store.get(digest)["control"]["w"] = torch.zeros(1)
    store.get(digest)["other"] = {}
    assert same(store.get(digest), state(1))


def test_collect_deletes_all_states_but_those_to_keep(tmp_path):
    store = FileClientStore(tmp_path)
    a, b, c = store.put_all([state(v) for v in (1, 2, 3)])
    for digest in (a, b, c):
        store.get(digest)
    assert store.collect({a, c}) == 1
    assert names(tmp_path) == sorted([f"{a}.safetensors", f"{c}.safetensors"])
    with pytest.raises(RunError, match="missing"):
        store.get(b)
    assert same(store.get(c), state(3))


def test_collect_deletes_temporary_files_only_when_they_are_old(tmp_path):
    store = FileClientStore(tmp_path)
    young, old = tmp_path / f"{files.TEMP}young", tmp_path / f"{files.TEMP}old"
    young.touch()
    old.touch()
    long_ago = time.time() - client_state.STALE_SECONDS - 1
    os.utime(old, (long_ago, long_ago))
    store.collect(set())
    assert names(tmp_path) == [young.name]


@pytest.mark.parametrize("at", [0, 20, -1])
def test_a_damaged_file_is_refused_in_one_line(tmp_path, at):
    store = FileClientStore(tmp_path)
    path = tmp_path / f"{store.put(state(1))}.safetensors"
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)
    with pytest.raises(RunError, match=r"^[^\n]*this client state is damaged[^\n]*$"):
        store.get(path.stem)


def test_a_full_disk_is_a_one_line_error_and_leaves_no_file(tmp_path, monkeypatch):
    def full(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match=r"^[^\n]*\.safetensors: No space left on device$"):
        FileClientStore(tmp_path).put(state(1))
    assert names(tmp_path) == []


def test_a_folder_that_cannot_be_created_is_a_one_line_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match=r"^[^\n]*file: a file is in the place of a folder$"):
        FileClientStore(tmp_path / "file" / "client_states")


def test_a_crash_before_the_rename_leaves_no_state(tmp_path, monkeypatch):
    class Killed(BaseException):
        pass

    def kill(*_):
        raise Killed

    for operation in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(os, operation, kill)
            with pytest.raises(Killed):
                FileClientStore(tmp_path).put(state(1))
        assert not list(tmp_path.glob("*.safetensors"))
    assert same(FileClientStore(tmp_path).get(FileClientStore(tmp_path).put(state(1))), state(1))


def write_many(folder, start):
    """Twenty states, ten of which every process writes."""
    torch.set_num_threads(1)
    FileClientStore(folder).put_all([state(v) for v in range(start, start + 20)])


def test_several_processes_may_write_at_once(tmp_path):
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=write_many, args=(tmp_path, 10 * k)) for k in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    store = FileClientStore(tmp_path)
    digests = store.put_all([state(v) for v in range(40)])
    assert names(tmp_path) == sorted(f"{digest}.safetensors" for digest in digests)
    assert all(same(store.get(digest), state(v)) for v, digest in enumerate(digests))
