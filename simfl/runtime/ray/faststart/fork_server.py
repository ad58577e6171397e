"""Workers of this machine as forks of one process that has imported and built what they need.

As Ray starts a worker, it imports ray, torch and what the model needs, seconds of processor time for each. A nursery is
a fork of the driver as it stands when data are read and the model is built, before Ray's threads. Each worker is a fork
of it: born in no time, its memory shared until it is written to.

    driver ──fork──> nursery ──fork──> worker          raylet ──starts──> newborn.py ──asks──> nursery
"""

from __future__ import annotations

import os
import runpy
import selectors
import signal
import socket
import sys
import threading
import time
import traceback
from contextlib import suppress
from importlib import import_module
from json import loads
from typing import Any, NoReturn

import torch

from simfl.run_context import RunContext
from simfl.runs import tables

FIRST = {"RAY_JOB_ID": "01000000"}  # the first job of a Ray; read by Ray when it is imported and never again
LATER = ("ray._common.pydantic_compat", "pydantic.v1.fields")  # what Ray imports, if it is there, as a worker connects
PATIENCE = 0.5  # seconds that a nursery has to end
GRACE = 0.3  # of these, seconds that those who were born there have to end by themselves, as Ray asks them to
inherited: list[RunContext] = []  # in a worker that was born here: what its nursery has built


class ForkServer:
    """The driver's end."""

    def __init__(self, setting: RunContext, address: str) -> None:
        """Forks, and listens at the address; to be asked for only where `possible`, with the model built."""
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(address)
        listener.listen()
        line, self._line = os.pipe()
        sys.stdout.flush(), sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._line)
            _live(listener, line, setting)
        listener.close()
        os.close(line)

    def close(self) -> None:
        """End it, and what was born there; one that still imports, where nobody was born yet, is not waited for."""
        os.close(self._line)
        deadline = time.monotonic() + PATIENCE
        while not os.waitpid(self.pid, os.WNOHANG)[0]:
            if time.monotonic() > deadline:
                os.kill(self.pid, signal.SIGKILL)
            time.sleep(0.005)


def possible(threads: int) -> bool:
    """Whether this process can be forked and go on: it has one thread, and no GPU, whose driver survives no fork.

    Nor may Ray have been here before: after its shutdown it refuses to be a worker, in every fork too. And workers of
    several `threads` would wait forever for those that torch has had here, which a fork does not take along.
    """
    untouched = sys.platform == "linux" and threading.active_count() == 1 and "ray" not in sys.modules
    return untouched and threads == 1 and not torch.cuda.is_available()


def _live(listener: socket.socket, line: int, setting: RunContext) -> NoReturn:
    """What the fork does, to its end; an exception in it must not run on into the driver's own code."""
    status = 1
    try:
        for number in (signal.SIGINT, signal.SIGTERM):  # it ends with the driver, which may have rounds to commit
            signal.signal(number, signal.SIG_IGN)
        inherited.append(setting)
        _Ward(listener, line).live()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


class _Ward:
    """The nursery's end: who was born, and the line to whoever asked for it."""

    def __init__(self, listener: socket.socket, line: int) -> None:
        self.listener, self.line = listener, line
        self.lines: dict[int, socket.socket] = {}
        self.ended, told = os.pipe()
        for end in (self.ended, told):
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(told, warn_on_full_buffer=False)
        self.told = told

    def live(self) -> None:
        """Import what workers will, then serve, until the driver's end of the line closes."""
        os.environ |= FIRST | {"RAY_RAYLET_PID": str(os.getppid())}  # a worker is to end with this: with the driver
        for name in ("ray", *LATER):
            with suppress(ImportError):
                import_module(name)
        tables.wake()
        with selectors.DefaultSelector() as watched:
            for end in (self.listener, self.line, self.ended):
                watched.register(end, selectors.EVENT_READ)
            self.watched = watched
            while self._serve():
                pass
            watched.unregister(self.line)
            deadline = time.monotonic() + GRACE
            while self.lines and (left := deadline - time.monotonic()) > 0:
                self._serve(left)
        for pid in self.lines:
            os.kill(pid, signal.SIGKILL)

    def _serve(self, seconds: float | None = None) -> bool:
        """Whatever has come; False when it is over."""
        for key, _ in self.watched.select(seconds):
            if key.fd == self.line:
                return False
            if key.fd == self.ended:
                os.read(self.ended, 512)
                self._reap()
            elif key.fileobj is self.listener:
                self._bear(self.listener.accept()[0])
            elif key.data in self.lines:  # who asked for it was killed
                os.kill(key.data, signal.SIGKILL)
                self.watched.unregister(key.fileobj)
        return True

    def _bear(self, line: socket.socket) -> None:
        try:
            size, fds, _, _ = socket.recv_fds(line, 8, 3)
            body = b""
            while len(body) < int.from_bytes(size, "big"):
                more = line.recv(1 << 20)
                if not more:
                    raise OSError("cut short")
                body += more
            arguments, environment, folder = loads(body)
            if not environment.items() >= FIRST.items():
                raise OSError("a worker of another job")
        except OSError:
            line.close()  # it starts as any worker does
            return
        pid = os.fork()
        if pid == 0:
            _be_worker(self, line, fds, arguments, environment, folder)
        for fd in fds:
            os.close(fd)
        self.lines[pid] = line
        self.watched.register(line, selectors.EVENT_READ, pid)
        line.sendall(b"!")

    def _reap(self) -> None:
        while self.lines:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            line = self.lines.pop(pid)
            if line.fileno() in self.watched.get_map():
                self.watched.unregister(line)
            code = os.waitstatus_to_exitcode(status)
            with suppress(OSError):  # nobody waits any more
                line.sendall(bytes([code if code >= 0 else 128 - code]))
            line.close()


def _be_worker(
    ward: _Ward, line: socket.socket, fds: list[int], arguments: list[str], environment: dict[str, str], folder: str
) -> NoReturn:
    """A worker of Ray's, as Ray's own program makes one."""
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        for usual in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(usual, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        os.setpgid(0, 0)  # Ray ends a worker with its group
        for end in (ward.line, ward.ended, ward.told):
            os.close(end)
        for open_line in (ward.listener, line, *ward.lines.values()):
            open_line.close()
        ward.watched.close()
        for number, fd in enumerate(fds):
            os.dup2(fd, number)
            os.close(fd)
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(folder)
        sys.argv = arguments
        _read_settings_again()
        runpy.run_path(arguments[0], run_name="__main__")
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _read_settings_again() -> None:
    """Ray has read its settings from the environment when it was imported, before they were made for workers."""
    import ray._raylet

    inner: Any = ray._raylet
    inner.Config.initialize("")
