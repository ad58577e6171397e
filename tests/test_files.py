"""Atomic file operations and locks."""

import errno
import os
import subprocess
import sys

import pytest

from simfl import files
from simfl.errors import RunError


def test_write_replaces_a_file_and_leaves_no_other_file(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"old")
    files.write(path, lambda file: file.write(b"new"))
    assert path.read_bytes() == b"new"
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_a_failed_write_keeps_the_old_file_and_reports_the_reason(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"old")

    def fill(file):
        file.write(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(RunError) as error:
        files.write(path, fill)
    assert str(error.value) == f"{path}: No space left on device"
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_the_content_is_synced_before_the_file_is_renamed(tmp_path, monkeypatch):
    calls = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda handle: (calls.append("fsync"), fsync(handle)))
    monkeypatch.setattr(os, "replace", lambda a, b: (calls.append("replace"), replace(a, b)))
    files.write(tmp_path / "a", lambda file: file.write(b"x"))
    files.sync_folder(tmp_path)
    assert calls == ["fsync", "replace", "fsync"]


def test_a_folder_is_created_with_its_parents_and_synced(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(files, "sync_folder", synced.append)
    files.make_folder(tmp_path / "a" / "b")
    files.make_folder(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    assert synced == [tmp_path, tmp_path / "a"]


def test_a_folder_is_locked_by_one_process_at_a_time(tmp_path):
    with files.locked(tmp_path), pytest.raises(RunError) as error, files.locked(tmp_path):
        pass
    assert str(error.value) == f"{tmp_path}: process {os.getpid()} is using this run; stop it first"
    with files.locked(tmp_path):
        assert (tmp_path / ".lock").read_text() == str(os.getpid())


def test_a_lock_is_released_when_its_process_ends(tmp_path):
    code = (
        "import os, sys, pathlib, simfl.files; simfl.files.locked(pathlib.Path(sys.argv[1])).__enter__(); os._exit(9)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False).returncode == 9
    with files.locked(tmp_path):
        assert (tmp_path / ".lock").read_text() == str(os.getpid())


def test_a_process_waits_for_the_lock_of_another_until_it_is_killed(tmp_path):
    """Another process holds the lock until it is killed, and this one waits for that."""
    code = (
        "import sys, time, pathlib, simfl.files\n"
        "with simfl.files.in_turn(pathlib.Path(sys.argv[1]), lambda: None):\n"
        "    print('locked', flush=True)\n"
        "    time.sleep(60)\n"
    )
    path = tmp_path / "turn.lock"
    with subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "locked\n"
        waited = []
        with files.in_turn(path, lambda: (waited.append(other.poll()), other.kill())):
            assert waited == [None]
    with files.in_turn(path, pytest.fail):
        pass
