"""Silence turned into stacks: a worker that is at one piece of work for too long writes where it stands.

The interpreter's own timer thread writes, without the interpreter's lock: also where a library hangs while holding it.
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

EARLY = 0.9  # of the limit: stacks are written before the driver gives up


class Watchdog:
    """What a worker holds: a file for its stacks, and how long a piece of work may last before they are written."""

    def __init__(self, folder: Path | None, seconds: float | None, file: TextIO | None = None) -> None:
        """Nothing is watched without a folder (or a file that is open already) and seconds."""
        self.seconds, self._file = seconds, file
        if folder is not None and seconds is not None:
            files.make_folder(folder)
            self._file = open(folder / f"{platform.node()}-{os.getpid()}.txt", "w")  # noqa: SIM115  (open for life)

    @contextmanager
    def over(self) -> Iterator[None]:
        """A piece of work; if the block lasts too long, the stacks of all threads are written once."""
        if self._file is None or self.seconds is None:
            yield
            return
        faulthandler.dump_traceback_later(EARLY * self.seconds, file=self._file)
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()

    def close(self) -> None:
        """Nothing is watched from now on."""
        if self._file is not None:
            self._file.close()
            self._file = None


def tidy(folder: Path | None) -> None:
    """Removes the files of workers that had nothing to say, and the folder if none had."""
    if folder is None or not folder.is_dir():
        return
    for path in folder.glob("*.txt"):
        if not path.stat().st_size:
            path.unlink()
    if not any(folder.iterdir()):
        folder.rmdir()
