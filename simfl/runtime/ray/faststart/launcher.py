"""A separate process that starts Ray on one machine, and stops it when the driver ends.

A start of Ray takes a second of processor time, imports included. In a process of its own it runs in parallel with the
driver's imports, if there is a second core; in a thread of the driver, both would share the interpreter.

    driver ──starts──> launcher ──starts──> Ray          driver ──joins, after its imports──> Ray

Imports nothing heavy, so that the process can start before anything else.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from subprocess import PIPE, Popen, TimeoutExpired
from threading import Event, Thread
from typing import Any

from simfl.runtime import machine
from simfl.runtime.descendants import adopt_orphans, kill_descendants
from simfl.runtime.ray.access import on_loopback, private_token
from simfl.runtime.ray.faststart.patches import patched

MAIN = (
    "import sys; sys.path[:] = sys.argv[2:]; from simfl.runtime.ray.faststart import launcher;"
    " launcher.main(sys.argv[1])"
)
STOP_TIMEOUT = 20.0  # seconds that Ray has to stop in order, until its processes are killed
KILL_TIMEOUT = 5.0  # seconds that the processes of a lost Ray have to end
AUTH = "RAY_AUTH_MODE"  # environment variable: authentication, the same in all processes of Ray


class RayLauncher:
    """The driver's handle of the process that starts Ray."""

    def __init__(self) -> None:
        """Start the process in a process group of its own, so that a signal to the driver's group does not stop it."""
        os.environ.setdefault(AUTH, "token")  # Ray's default where it starts in the usual way
        self.folder = tempfile.mkdtemp(prefix="simfl-")  # removed when Ray stops
        command = [sys.executable, "-c", MAIN, self.fork_address, *sys.path]
        self._process = Popen(command, stdin=PIPE, stdout=PIPE, text=True, process_group=0)
        self.killed = False

    @property
    def fork_address(self) -> str:
        """Return the socket on which workers ask to be forked; without a server there, they start in the usual way."""
        return str(Path(self.folder) / "fork-server")

    def address(self) -> str:
        """Wait for Ray and return its address; raise ConnectionError if it did not start."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        answer: dict[str, str] = json.loads(line) if line else {"error": "the launcher process has ended"}
        if "error" in answer:
            raise ConnectionError(answer["error"])
        return answer["address"]

    def close(self, wait: bool = True) -> None:
        """Stop Ray; kill it if its launcher is frozen."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        if wait:
            try:
                self._process.wait(STOP_TIMEOUT)
            except TimeoutExpired:
                self.kill()
            self._process.stdout.close()

    def kill(self) -> None:
        """Kill Ray, whose processes may be frozen, and remove its folder."""
        assert self._process.stdin is not None
        self.killed = True
        self._process.stdin.close()
        with suppress(TimeoutExpired):
            self._process.wait(KILL_TIMEOUT)
        if self._process.poll() is None:
            kill_descendants(self._process.pid)
        with suppress(OSError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def main(fork_address: str) -> None:
    """Start Ray, print its address as JSON, and stop it when the driver closes the pipe."""
    node, folder, started = None, Path(fork_address).parent, Event()
    adopt_orphans()
    watch = Thread(target=_end_with_driver, args=(started, folder), daemon=True)
    watch.start()
    try:
        try:
            node = _start(fork_address)
            answer = {"address": node.gcs_address}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        started.set()
        print(json.dumps(answer), flush=True)
        watch.join()
    finally:
        if node is not None:
            node.kill_all_processes(check_alive=False, allow_graceful=True)
        kill_descendants()  # such as agents of a raylet that was killed
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(0)


def _end_with_driver(started: Event, folder: Path) -> None:
    """Wait until the driver closes the pipe, also by its end; a Ray that is still starting then is killed at once."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    if not started.is_set():
        kill_descendants()
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(0)


def _start(fork_address: str) -> Any:
    """Start a head node as `ray.init` does, without a driver, and return it."""
    from ray._private import node, parameter
    from ray._private.authentication import authentication_token_setup as tokens

    with private_token():
        tokens.ensure_token_if_auth_enabled({}, create_token_if_missing=True)
    with on_loopback(), patched(fork_address):
        settings = parameter.RayParams(num_cpus=machine.cpus(), include_dashboard=False)
        return node.Node(settings, head=True, shutdown_at_exit=False, spawn_reaper=True, ray_init_cluster=True)
