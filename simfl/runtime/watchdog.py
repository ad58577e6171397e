"""Stack dumps of workers that hang.

The interpreter's own timer thread writes them without taking the interpreter lock, so a dump also appears if a library
hangs while it holds the lock.
"""

from __future__ import annotations

import faulthandler
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from simfl import files

DUMP_AT = 0.9  # share of the limit after which stacks are dumped: before the driver gives up


class Watchdog:
    """A worker's file for stack dumps, and the time limit of its tasks."""

    def __init__(self, folder: Path | None, seconds: float | None, file: TextIO | None = None) -> None:
        """Open the dump file, or use the open `file`; without a file or a time limit, watch nothing."""
        self.seconds, self._file = seconds, file
        if folder is not None and seconds is not None:
            files.make_folder(folder)
            self._file = open(folder / f"{platform.node()}-{os.getpid()}.txt", "w")  # noqa: SIM115  (open for life)

    @contextmanager
    def over(self) -> Iterator[None]:
        """Watch a task: if the block lasts too long, dump the stacks of all threads once."""
        if self._file is None or self.seconds is None:
            yield
            return
        faulthandler.dump_traceback_later(DUMP_AT * self.seconds, file=self._file)
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()

    def close(self) -> None:
        """Close the file; later tasks are not watched."""
        if self._file is not None:
            self._file.close()
            self._file = None


def remove_empty_dumps(folder: Path | None) -> None:
    """Remove the empty files of workers that never hung, and the folder if nothing remains in it."""
    if folder is None or not folder.is_dir():
        return
    for path in folder.glob("*.txt"):
        if not path.stat().st_size:
            path.unlink()
    if not any(folder.iterdir()):
        folder.rmdir()
