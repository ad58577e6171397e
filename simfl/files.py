"""Files that are there whole or not at all, and stay there after a crash."""

from __future__ import annotations

import errno
import fcntl
import os
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, BinaryIO

from simfl.errors import RunError

LOOK = 0.2  # seconds between two looks whether a turn has come
TEMP = ".tmp-"  # temporary names begin so; what a killed process leaves under such a name means nothing


def temp_beside(path: Path) -> Path:
    """A name in the same folder that no other process chooses."""
    return path.with_name(f"{TEMP}{path.name}-{uuid.uuid4().hex}")


def make_folder(path: Path) -> None:
    """A folder and those above it, on the disk when this returns; RunError if the disk refuses."""
    if path.is_dir():
        return
    make_folder(path.parent)
    try:
        path.mkdir(exist_ok=True)
        sync_folder(path.parent)
    except OSError as error:
        raise disk_error(path, error) from error


def sync_folder(path: Path) -> None:
    """Returns when the entries of a folder are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_synced(path: Path, fill: Callable[[BinaryIO], object]) -> None:
    """`fill` writes the file, which is on the disk when this returns; its entry in the folder need not be."""
    with open(path, "wb") as file:
        fill(file)
        file.flush()
        os.fsync(file.fileno())


def write(path: Path, fill: Callable[[BinaryIO], object]) -> None:
    """A whole file under its name in one step; RunError if the disk refuses.

    `sync_folder(path.parent)` is left to the caller, who may have written several files.
    """
    temp = temp_beside(path)
    try:
        write_synced(temp, fill)
        os.replace(temp, path)
    except OSError as error:
        temp.unlink(missing_ok=True)
        raise disk_error(path, error) from error


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """The block has this folder to itself, as far as processes ask by this function; RunError if another has it.

    The lock ends with the process, however it ends. A disk that knows no locks is taken at its word.
    """
    try:
        file = open(folder / ".lock", "a+")  # noqa: SIM115 (closed below)
    except OSError as error:
        raise disk_error(folder, error) from error
    with file:
        if not _lock(file):
            file.seek(0)
            raise RunError(f"{folder}: process {file.read().strip()} is at work on this run; end it first")
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


@contextmanager
def in_turn(path: Path, on_wait: Callable[[], object]) -> Iterator[None]:
    """One process at a time is in the block, of those that name this file; `on_wait` is called before a wait.

    A turn ends with the process, however it ends. OSError where the file cannot be made.
    """
    with open(path, "a") as file:
        if not _lock(file):
            on_wait()
            while not _lock(file):
                time.sleep(LOOK)
        yield


def _lock(file: IO[str]) -> bool:
    """Whether an open file is this process's now; a disk that knows no locks is taken at its word."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOTSUP):
            raise
    return True


def disk_error(path: Path, error: OSError) -> RunError:
    """One line for what the disk refused."""
    if error.errno in (errno.EEXIST, errno.ENOTDIR):
        return RunError(f"{path}: a file lies where a folder is needed")
    return RunError(f"{path}: {error.strerror or error}")
