"""Processes below this one, as those of a Ray that was started here, and their end.

A process whose parent ends becomes a child of the nearest ancestor that adopts orphans, or of the system's first
process, which ends none: Ray's agents survive a raylet that is killed, for as long as their imports take.

Imports nothing heavy, so that a process can call it before anything else.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

SET_PARENT_DEATH_SIGNAL, SET_CHILD_SUBREAPER = 1, 36  # of prctl
POLL_SECONDS = 0.02
KILL_SECONDS = 10.0  # that killed processes have to end


def end_with_parent() -> None:
    """Let the system kill this process when its parent ends (Linux)."""
    _prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)


def adopt_orphans() -> None:
    """Become the parent of all processes below this one whose parent ends (Linux)."""
    _prctl(SET_CHILD_SUBREAPER, 1)


def descendants(ancestor: int) -> list[int]:
    """Return the living processes below a process, its children first; an empty list where there is no /proc."""
    children: dict[int, list[int]] = {}
    for process, parent in _parents():
        children.setdefault(parent, []).append(process)
    found, new = list[int](), [ancestor]
    while new:
        new = [child for parent in new for child in children.get(parent, [])]
        found += new
    return found


def kill_descendants(ancestor: int | None = None) -> None:
    """Kill all processes below a process, by default this one, and wait until none is left."""
    end = time.monotonic() + KILL_SECONDS
    while (found := descendants(os.getpid() if ancestor is None else ancestor)) and time.monotonic() < end:
        for process in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
        time.sleep(POLL_SECONDS)
    if ancestor is None:
        _reap()


def end_descendants(seconds: float) -> None:
    """Wait until no process is left below this one, and kill those that are left after so many seconds."""
    end = time.monotonic() + seconds
    while descendants(os.getpid()) and time.monotonic() < end:
        _reap()
        time.sleep(POLL_SECONDS)
    kill_descendants()


def _parents() -> Iterator[tuple[int, int]]:
    """Yield each living process with its parent."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, IndexError, ValueError):
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
            if state not in "ZX":
                yield int(path.parent.name), int(parent)


def _reap() -> None:
    """Remove children that have ended from the table of processes."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _prctl(option: int, value: int) -> None:
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(option, value)
