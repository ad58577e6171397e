"""Atomic and durable file operations, locks between processes, and the folder of data sets."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, BinaryIO

from simfl.errors import RunError

POLL_SECONDS = 0.2  # between two attempts to get a lock
TEMP = ".tmp-"  # prefix of temporary names; files that a killed process leaves under such names can be deleted


def cache_folder() -> Path:
    """Return the folder of data sets: `SIMFL_CACHE`, or `~/.cache/simfl`."""
    return Path(os.environ.get("SIMFL_CACHE") or Path.home() / ".cache" / "simfl")


def temp_path(path: Path) -> Path:
    """Return a unique temporary name in the folder of `path`."""
    return path.with_name(f"{TEMP}{path.name}-{uuid.uuid4().hex}")


def make_folder(path: Path) -> None:
    """Create a folder and its parents, and sync them to disk; RunError if this fails."""
    if path.is_dir():
        return
    make_folder(path.parent)
    try:
        path.mkdir(exist_ok=True)
        sync_folder(path.parent)
    except OSError as error:
        raise disk_error(path, error) from error


def sync_folder(path: Path) -> None:
    """Sync the entries of a folder to disk."""
    _sync(path)


def sync_file(path: Path) -> None:
    """Sync the content of a file that another process may have written to disk, but not its entry in the folder."""
    _sync(path)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_synced(path: Path, fill: Callable[[BinaryIO], object]) -> None:
    """Write a file with `fill` and sync its content to disk, but not its entry in the folder."""
    with open(path, "wb") as file:
        fill(file)
        file.flush()
        os.fsync(file.fileno())


def write(path: Path, fill: Callable[[BinaryIO], object]) -> None:
    """Write a file atomically: it has either its old or its new content; RunError if the disk refuses.

    The caller syncs the folder, once for several files: `sync_folder(path.parent)`.
    """
    temp = temp_path(path)
    try:
        write_synced(temp, fill)
        os.replace(temp, path)
    except OSError as error:
        temp.unlink(missing_ok=True)
        raise disk_error(path, error) from error


def link(source: Path, target: Path) -> Path:
    """Create a hard link to a file, or a copy on another disk or where there are no links, and return `target`."""
    try:
        os.link(source, target)
    except FileExistsError:
        pass
    except FileNotFoundError:
        raise
    except OSError:
        data = source.read_bytes()
        write(target, lambda file: file.write(data))
    return target


def remove_temps(folder: Path) -> None:
    """Delete all files and folders with temporary names in a folder that no process writes to; OSErrors are ignored."""
    for path in folder.rglob(f"{TEMP}*"):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with suppress(OSError):
                path.unlink()


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a folder for the block; RunError if another process holds the lock.

    The lock ends with the process, even if it is killed. On file systems without locks, every lock succeeds.
    """
    try:
        file = open(folder / ".lock", "a+", errors="replace")  # noqa: SIM115  (closed below)
    except OSError as error:
        raise disk_error(folder, error) from error
    with file:
        if not _lock(file):
            file.seek(0)
            raise RunError(f"{folder}: process {file.read().strip()} is using this run; stop it first")
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


@contextmanager
def in_turn(path: Path, on_wait: Callable[[], object]) -> Iterator[None]:
    """Run the block in one process at a time, of those that use the same `path`; call `on_wait` before waiting.

    The lock ends with the process, even if it is killed. OSError if the file cannot be created.
    """
    with open(path, "a") as file:
        if not _lock(file):
            on_wait()
            while not _lock(file):
                time.sleep(POLL_SECONDS)
        yield


def _lock(file: IO[str]) -> bool:
    """Try to lock an open file, and return whether it succeeded; it always does on file systems without locks."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOTSUP):
            raise
    return True


def disk_error(path: Path, error: OSError) -> RunError:
    """Return a one-line RunError for an error of the disk."""
    if error.errno in (errno.EEXIST, errno.ENOTDIR):
        return RunError(f"{path}: a file is in the place of a folder")
    return RunError(f"{path}: {error.strerror or error}")
