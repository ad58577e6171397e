"""Workers of one machine as forks of a process that has imported and built what they need.

In the usual start, each worker imports ray, torch and the model's libraries: seconds of processor time per worker. The
fork server is a fork of the driver from before Ray's threads exist, with the data read and the model built. Each worker
is a fork of the server: it starts at once and shares memory until one of them writes to it.

    driver ──fork──> server ──fork──> worker          raylet ──starts──> forked_worker.py ──asks──> server
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
from dataclasses import dataclass
from importlib import import_module
from json import loads
from typing import Any, NoReturn

import torch

from simfl.run_context import RunContext
from simfl.runs import tables
from simfl.runtime.ray import actor

FIRST_JOB = {"RAY_JOB_ID": "01000000"}  # Ray reads it when it is imported, and never again
EXTRA_IMPORTS = ("ray._common.pydantic_compat", "pydantic.v1.fields")  # Ray imports them as a worker connects
CLOSE_TIMEOUT = 0.5  # seconds that the server has to end
WORKER_TIMEOUT = 0.3  # of these, seconds that its workers have to exit, as Ray asks them to


class ForkServer:
    """The driver's handle of the fork server."""

    def __init__(self, context: RunContext | None, address: str) -> None:
        """Fork the server, which listens at the address; requires `can_fork`, and a built model if there is a context.

        Without a context, workers inherit what this process has imported.
        """
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(address)
        listener.listen()
        driver_closed, self._open = os.pipe()  # the server ends when the driver's end closes
        sys.stdout.flush(), sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._open)
            _run_server(listener, driver_closed, context)
        listener.close()
        os.close(driver_closed)

    def close(self) -> None:
        """Stop the server and its workers; a server that still imports has no worker and is killed."""
        os.close(self._open)
        deadline = time.monotonic() + CLOSE_TIMEOUT
        while not os.waitpid(self.pid, os.WNOHANG)[0]:
            if time.monotonic() > deadline:
                os.kill(self.pid, signal.SIGKILL)
            time.sleep(0.005)


def can_fork(threads: int) -> bool:
    """Return whether this process can be forked into workers of so many torch threads.

    It must have a single thread and no GPU, whose driver does not survive a fork. It must not have imported Ray, which
    after a shutdown refuses to be a worker, in every fork too. Workers with several threads would wait forever for
    torch's threads of this process, which a fork does not copy.
    """
    untouched = sys.platform == "linux" and threading.active_count() == 1 and "ray" not in sys.modules
    return untouched and threads == 1 and not torch.cuda.is_available()


def _run_server(listener: socket.socket, driver_closed: int, context: RunContext | None) -> NoReturn:
    """Serve until the driver ends, and exit: an exception must not propagate into the driver's code."""
    status = 1
    try:
        for number in (signal.SIGINT, signal.SIGTERM):  # it ends with the driver, which may have to write a checkpoint
            signal.signal(number, signal.SIG_IGN)
        actor.inherited += [] if context is None else [context]
        _Server(listener, driver_closed).run()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


@dataclass(frozen=True)
class _Request:
    """Request of a worker: its command line, environment, working directory and open files."""

    arguments: list[str]
    environment: dict[str, str]
    folder: str
    files: list[int]  # standard input, output and error


class _Server:
    """The fork server: its workers, and the connection to the program that asked for each."""

    def __init__(self, listener: socket.socket, driver_closed: int) -> None:
        self.listener, self.driver_closed = listener, driver_closed
        self.connections: dict[int, socket.socket] = {}  # by process id of the worker
        self.child_ended, self.wakeup = os.pipe()
        for end in (self.child_ended, self.wakeup):
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self.wakeup, warn_on_full_buffer=False)
        self.selector = selectors.DefaultSelector()

    def run(self) -> None:
        """Import what workers need, then serve until the driver's end of the pipe closes."""
        driver = {"RAY_RAYLET_PID": str(os.getppid())}  # a worker exits when the process with this id does
        os.environ |= FIRST_JOB | driver
        for name in ("ray", *EXTRA_IMPORTS):
            with suppress(ImportError):
                import_module(name)
        tables.warm_up()
        with self.selector:
            for end in (self.listener, self.driver_closed, self.child_ended):
                self.selector.register(end, selectors.EVENT_READ)
            while self._serve():
                pass
            self.selector.unregister(self.driver_closed)
            deadline = time.monotonic() + WORKER_TIMEOUT
            while self.connections and (left := deadline - time.monotonic()) > 0:
                self._serve(left)
        for pid in self.connections:
            os.kill(pid, signal.SIGKILL)

    def _serve(self, timeout: float | None = None) -> bool:
        """Wait for events and handle them; return False when the driver has ended."""
        for key, _ in self.selector.select(timeout):
            if key.fd == self.driver_closed:
                return False
            if key.fd == self.child_ended:
                os.read(self.child_ended, 512)
                self._report_ended()
            elif key.fileobj is self.listener:
                self._accept(self.listener.accept()[0])
            elif key.data in self.connections:  # Ray has killed the program that asked
                os.kill(key.data, signal.SIGKILL)
                self.selector.unregister(key.fileobj)
        return True

    def _accept(self, connection: socket.socket) -> None:
        """Fork a worker for a request; without an answer, the program starts the worker in the usual way."""
        try:
            request = _read_request(connection)
        except OSError:
            connection.close()
            return
        pid = os.fork()
        if pid == 0:
            _run_worker(self, connection, request)
        for file in request.files:
            os.close(file)
        self.connections[pid] = connection
        self.selector.register(connection, selectors.EVENT_READ, pid)
        connection.sendall(b"!")

    def _report_ended(self) -> None:
        """Send the exit codes of workers that have ended."""
        while self.connections:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            connection = self.connections.pop(pid)
            if connection.fileno() in self.selector.get_map():
                self.selector.unregister(connection)
            code = os.waitstatus_to_exitcode(status)
            with suppress(OSError):  # the program may have ended
                connection.sendall(bytes([code if code >= 0 else 128 - code]))
            connection.close()

    def close_in_worker(self, connection: socket.socket) -> None:
        """Close the server's files, which a forked worker has inherited."""
        for end in (self.driver_closed, self.child_ended, self.wakeup):
            os.close(end)
        for inherited in (self.listener, connection, *self.connections.values()):
            inherited.close()
        self.selector.close()


def _read_request(connection: socket.socket) -> _Request:
    """Read a request; raise OSError if it is cut short or of another job of Ray."""
    size, files, _, _ = socket.recv_fds(connection, 8, 3)
    body = b""
    while len(body) < int.from_bytes(size, "big"):
        more = connection.recv(1 << 20)
        if not more:
            raise OSError("cut short")
        body += more
    arguments, environment, folder = loads(body)
    if not environment.items() >= FIRST_JOB.items():
        raise OSError("a worker of another job")
    return _Request(arguments, environment, folder, files)


def _run_worker(server: _Server, connection: socket.socket, request: _Request) -> NoReturn:
    """Become a worker of Ray, as Ray's own program does, and exit."""
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        os.setpgid(0, 0)  # Ray ends a worker with its process group
        server.close_in_worker(connection)
        for descriptor, file in enumerate(request.files):
            os.dup2(file, descriptor)
            os.close(file)
        os.environ.clear()
        os.environ.update(request.environment)
        os.chdir(request.folder)
        sys.argv = request.arguments
        _reload_settings()
        runpy.run_path(request.arguments[0], run_name="__main__")
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _reload_settings() -> None:
    """Have Ray read its settings again: it read them at its import, before the environment was a worker's."""
    import ray._raylet

    raylet: Any = ray._raylet
    raylet.Config.initialize("")
