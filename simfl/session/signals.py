"""Ctrl-C, SIGTERM and SIGHUP as an exception in the main thread, deferred while a checkpoint is written."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(KeyboardInterrupt):
    """The user or the system asked the run to stop."""


class Signals:
    """A handler that raises `Interrupted` for the first signal, and ignores further ones.

    A signal that arrives inside a `held` block is raised at the end of the block.
    """

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
        """Handle SIGINT, SIGTERM and SIGHUP inside the block; outside of the main thread this does nothing.

        A SIGHUP that is ignored, as under nohup, stays ignored.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        numbers = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, self._handle) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def send(self) -> None:
        """Interrupt the main thread from another thread, as SIGTERM does."""
        if not self._closed:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Defer signals to the end of the block.

        An `Interrupted` that was raised inside a finaliser is lost there; it is raised again at the end of the block.
        """
        self._holding = True
        try:
            yield
        finally:
            self._holding = False
        if self._received and not self._closed:
            raise Interrupted(self._received)

    def close(self) -> None:
        """Ignore signals from now on, because the run is being ended."""
        self._closed = True
