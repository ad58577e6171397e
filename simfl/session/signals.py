"""Ctrl-C and SIGTERM as an exception in the main thread, held back while a commit is being written."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupted(KeyboardInterrupt):
    """The user or the system asked the run to stop."""


class Signals:
    """Turns the first signal into `Interrupted`, inside a `held` block at its end; further ones change nothing."""

    def __init__(self) -> None:
        self._holding = False
        self._received = ""  # the first signal
        self._closed = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        first, self._received = not self._received, self._received or signal.Signals(number).name
        if first and not (self._holding or self._closed):
            raise Interrupted(self._received)

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Inside the block, signals rise as `Interrupted`. Only the main thread can catch them."""
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
        """A block that no signal may cut in two.

        A signal whose exception was lost, since it rose where all is swallowed (in a finaliser), rises here once more.
        """
        self._holding = True
        try:
            yield
        finally:
            self._holding = False
        if self._received and not self._closed:
            raise Interrupted(self._received)

    def close(self) -> None:
        """From now on the run is being ended, and signals add nothing."""
        self._closed = True
