"""Client states are named by the hash of their content; many of them share a file, which is never changed."""

import errno
import multiprocessing
import os
import time

import pytest
import torch

from simfl import client_state, files
from simfl.client_state import EMPTY, FileClientStore
from simfl.errors import RunError
from simfl.weights import flatten, sha256, write_safetensors


def state(value, size=4):
    return {"control": {"w": torch.full((size,), float(value)), "steps": torch.tensor(3)}, "nothing": {}}


def same(a, b):
    return list(a) == list(b) and sha256(flatten(a)) == sha256(flatten(b))


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_stored_state_can_be_read_by_another_store(tmp_path):
    reader = FileClientStore(tmp_path)
    with pytest.raises(RunError, match="is missing"):
        reader.get("0" * 64)
    digest = FileClientStore(tmp_path).put(state(1))
    (name,) = names(tmp_path)
    assert name.endswith(".pack")
    assert same(reader.get(digest), state(1))
    assert same(FileClientStore(tmp_path).get(digest), state(1))


def test_a_view_is_stored_without_the_rest_of_its_tensor(tmp_path):
    stack = torch.arange(3_000.0).reshape(3, 1000)
    digest = FileClientStore(tmp_path).put({"a": {"w": stack[1]}})
    assert torch.equal(FileClientStore(tmp_path).get(digest)["a"]["w"], stack[1])
    assert (tmp_path / names(tmp_path)[0]).stat().st_size < 4_400


def test_equal_states_are_written_once(tmp_path):
    store = FileClientStore(tmp_path)
    first = store.put(state(1))
    before = names(tmp_path)
    assert store.put_all([state(1), state(2), state(1)])[::2] == [first, first]
    assert len(names(tmp_path)) == 2
    assert set(before) < set(names(tmp_path))
    assert FileClientStore(tmp_path).collect([first]) == 1


def test_states_of_a_batch_share_a_file_that_is_named_once_they_are_synced(tmp_path):
    store = FileClientStore(tmp_path)
    digests = [store.write(state(v)) for v in range(20)]
    assert all(name.startswith(files.TEMP) for name in names(tmp_path))
    store.sync(digests)
    assert len(names(tmp_path)) == 1
    assert all(same(FileClientStore(tmp_path).get(digest), state(v)) for v, digest in enumerate(digests))


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


def test_collect_deletes_packs_without_a_needed_state(tmp_path):
    store = FileClientStore(tmp_path)
    a, b, c = (store.put(state(v)) for v in (1, 2, 3))
    for digest in (a, b, c):
        store.get(digest)
    assert store.collect({a, c}) == 1
    assert len(names(tmp_path)) == 2
    with pytest.raises(RunError, match="missing"):
        store.get(b)
    assert same(store.get(c), state(3))


def test_a_pack_is_rewritten_once_most_of_it_is_not_needed(tmp_path):
    """Not at once: states of the last checkpoints are soon replaced."""
    store = FileClientStore(tmp_path)
    digests = store.put_all([state(v, 100) for v in range(10)])
    (name,), kept = names(tmp_path), digests[:3]
    for _ in range(client_state.YOUNG):
        assert store.collect(kept) == 7
        assert names(tmp_path) == [name]
    store.collect(kept)
    (smaller,) = names(tmp_path)
    assert (tmp_path / smaller).stat().st_size < 2500
    assert store.collect(kept) == 0
    for folder in (store, FileClientStore(tmp_path)):
        assert all(same(folder.get(digest), state(v, 100)) for v, digest in enumerate(kept))
        with pytest.raises(RunError, match="missing"):
            folder.get(digests[5])


def test_compacting_leaves_no_other_state(tmp_path):
    store = FileClientStore(tmp_path)
    digests = store.put_all([state(v) for v in range(10)])
    assert FileClientStore(tmp_path).collect(digests[:9], compact=True) == 1
    assert FileClientStore(tmp_path).collect(digests[:9]) == 0
    assert same(store.get(digests[0]), state(0))  # its pack was deleted after this store had read the index
    assert store.write(state(9)) == digests[9]
    store.sync([digests[9]])
    assert same(FileClientStore(tmp_path).get(digests[9]), state(9))


def test_small_packs_are_merged_and_their_number_stays_small(tmp_path, monkeypatch):
    """One client a round: each writes a pack of one state, and 50 clients need 50 states."""
    monkeypatch.setattr(client_state, "MERGED_PACKS", 4)
    store, newest, most = FileClientStore(tmp_path), {}, 0
    for round_number in range(150):
        newest[round_number % 50] = store.put(state(round_number))
        store.collect(newest.values())
        most = max(most, len(names(tmp_path)))
    assert most < 20
    fresh = FileClientStore(tmp_path)
    assert all(same(fresh.get(newest[k]), state(100 + k)) for k in range(50))


def test_states_of_older_runs_are_read_and_merged(tmp_path, monkeypatch):
    """A run of format 2 has a file `<digest>.safetensors` for each state."""
    flats = [flatten(state(v)) for v in range(client_state.MERGED_PACKS)]
    digests = [sha256(flat) for flat in flats]
    for flat, digest in zip(flats, digests, strict=True):
        with open(tmp_path / f"{digest}.safetensors", "wb") as file:
            write_safetensors(flat, file)
    store = FileClientStore(tmp_path)
    assert same(store.get(digests[3]), state(3))
    assert store.put(state(3)) == digests[3]
    assert len(names(tmp_path)) == len(digests)
    store.collect(digests, compact=True)
    assert [name[-5:] for name in names(tmp_path)] == [".pack"]
    assert all(same(FileClientStore(tmp_path).get(digest), state(v)) for v, digest in enumerate(digests))


@pytest.mark.parametrize("by_reference", [True, False])
@pytest.mark.parametrize("links", [True, False])
def test_states_of_another_folder_are_adopted(tmp_path, monkeypatch, by_reference, links):
    def refuse(*_):
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    source, target = FileClientStore(tmp_path / "a"), FileClientStore(tmp_path / "b")
    a, b = source.put(state(1)), source.put(state(2))
    with monkeypatch.context() as patch:
        if not links:
            patch.setattr(os, "link", refuse)
        target.adopt(tmp_path / "a", [a, a, EMPTY], by_reference)
    assert same(target.get(a), state(1))
    with pytest.raises(RunError, match="missing"):
        target.get(b)
    with pytest.raises(RunError, match="missing"):
        target.adopt(tmp_path / "a", ["0" * 64])


def test_collect_deletes_temporary_files_only_when_they_are_old(tmp_path):
    store = FileClientStore(tmp_path)
    young, old = tmp_path / f"{files.TEMP}young", tmp_path / f"{files.TEMP}old"
    young.touch()
    old.touch()
    long_ago = time.time() - client_state.STALE_SECONDS - 1
    os.utime(old, (long_ago, long_ago))
    store.collect(set())
    assert names(tmp_path) == [young.name]


@pytest.mark.parametrize("at", [0, 20, 150, -1, -20, -50, -100])
def test_a_damaged_file_is_refused_in_one_line(tmp_path, at):
    """Wherever the byte is: in a state, in the index, in its hash or at the end."""
    digest = FileClientStore(tmp_path).put(state(1))
    path = tmp_path / names(tmp_path)[0]
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)
    with pytest.raises(RunError, match=r"^[^\n]*damaged[^\n]*$"):
        FileClientStore(tmp_path).get(digest)


def test_a_file_that_is_cut_off_is_refused_in_one_line(tmp_path):
    digest = FileClientStore(tmp_path).put(state(1))
    path = tmp_path / names(tmp_path)[0]
    whole = path.read_bytes()
    for size in (0, 10, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(RunError, match=r"^[^\n]*is damaged$"):
            FileClientStore(tmp_path).get(digest)


def test_a_full_disk_is_a_one_line_error_and_leaves_no_file(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(RunError, match=r"^[^\n]*: No space left on device$"):
            FileClientStore(tmp_path).put(state(1))
    assert names(tmp_path) == []
    monkeypatch.setattr(os, "fsync", full)
    store = FileClientStore(tmp_path)
    digest = store.write(state(1))
    store.publish()
    with pytest.raises(RunError, match=r"^[^\n]*: No space left on device$"):
        store.sync([digest])
    assert [path.name for path in store.not_durable([digest])] == names(tmp_path)  # the next checkpoint waits again


def test_a_folder_that_cannot_be_created_is_a_one_line_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match=r"^[^\n]*file: a file is in the place of a folder$"):
        FileClientStore(tmp_path / "file" / "client_states")


def test_a_crash_before_the_rename_leaves_no_state(tmp_path, monkeypatch):
    class Killed(BaseException):
        pass

    def kill(*_):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", kill)
        with pytest.raises(Killed):
            FileClientStore(tmp_path).put(state(1))
    assert not list(tmp_path.glob("*.pack"))
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
    store, before = FileClientStore(tmp_path), names(tmp_path)
    assert len(before) == 3
    digests = [store.write(state(v)) for v in range(40)]
    store.sync(digests)
    assert all(same(FileClientStore(tmp_path).get(digest), state(v)) for v, digest in enumerate(digests))
    store.collect(digests, compact=True)
    assert store.collect(digests) == 0


@pytest.mark.parametrize("at", range(1, 7))
def test_a_kill_while_packs_are_merged_loses_no_state(tmp_path, monkeypatch, at):
    """The n-th operation of the disk kills the process: the states that are needed are in an old pack or a new one."""

    class Killed(BaseException):
        pass

    store = FileClientStore(tmp_path)
    kept = [store.put_all([state(v), state(100 + v)])[0] for v in range(4)]
    calls = []
    for operation in ("fsync", "replace", "unlink"):
        real = getattr(os, operation)

        def call(*given, real=real, **named):
            calls.append(real)
            if len(calls) == at:
                raise Killed
            return real(*given, **named)

        monkeypatch.setattr(os, operation, call)
    with pytest.raises(Killed):
        FileClientStore(tmp_path).collect(kept, compact=True)
    monkeypatch.undo()
    files.remove_temps(tmp_path)
    FileClientStore(tmp_path).verify(kept)
    assert FileClientStore(tmp_path).collect(kept, compact=True) >= 0
    assert FileClientStore(tmp_path).collect(kept) == 0
    FileClientStore(tmp_path).verify(kept)


def test_a_damaged_file_is_kept_while_a_state_is_missing_and_then_named(tmp_path):
    writer = FileClientStore(tmp_path)
    lost, (name,) = writer.put(state(1)), names(tmp_path)
    kept = writer.put(state(2))
    content = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(content[:-1])
    store = FileClientStore(tmp_path)
    store.collect([lost, kept])
    with pytest.raises(RunError, match=f"{lost} is missing; {name} is damaged"):
        store.get(lost)
    assert same(store.get(kept), state(2))
    store.collect([kept])
    assert name not in names(tmp_path)
