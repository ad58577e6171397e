"""Ctrl-C and SIGTERM as an exception in the main thread, held back while a commit is being written."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupted(BaseException):
    """The user or the system asked the run to stop."""


class Signals:
    """Turns signals into `Interrupted`, except inside `held` blocks, at whose end it rises."""

    def __init__(self) -> None:
        self._holding = False
        self._pending = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._pending = True
        if not self._holding:
            raise Interrupted(signal.Signals(number).name)

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Inside the block, signals rise as `Interrupted`. Outside the main thread signals cannot be caught, and are not."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._handle) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def held(self) -> Iterator[None]:
        """A block that no signal may cut in two."""
        self._holding = True
        try:
            yield
        finally:
            self._holding = False
        if self._pending:
            self._pending = False
            raise Interrupted("held")
