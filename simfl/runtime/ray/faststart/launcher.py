"""Ray of one machine in a process of its own, which starts it, holds it, and ends it with whoever asked for it.

Starting Ray takes a second of processor time, imports included. Beside a driver that is still importing what a run
needs it costs nothing where there is a second core; in a thread of the driver it would take turns with all that.

    driver ──starts──> this process ──starts──> Ray          driver ──joins, when it has imported──> Ray

Imports nothing heavy, so that it can be begun before anything else is.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

from simfl.runtime import machine as limits
from simfl.runtime.ray.faststart.patches import lean

MAIN = "import sys; sys.path[:] = sys.argv[2:]; from simfl.engine import head; head.main(sys.argv[1])"
AUTH = "RAY_AUTH_MODE"  # environment variable: how Ray is guarded, in every process of it the same


class RayLauncher:
    """The driver's end."""

    def __init__(self) -> None:
        """Starts the process, in a group of its own: a signal to the driver's is for the driver, which has rounds."""
        os.environ.setdefault(AUTH, "token")  # as Ray has it where it starts by itself
        self.folder = tempfile.mkdtemp(prefix="simfl-")  # goes with Ray
        command = [sys.executable, "-c", MAIN, self.cradle, *sys.path]
        self._process = Popen(command, stdin=PIPE, stdout=PIPE, text=True, process_group=0)

    @property
    def cradle(self) -> str:
        """Where workers ask to be born; until a nursery listens there, they start as Ray starts them."""
        return str(Path(self.folder) / "nursery")

    def address(self) -> str:
        """Of Ray, when it is up; ConnectionError where it did not come up."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        found: dict[str, str] = json.loads(line) if line else {"error": "the process that starts it has ended"}
        if "error" in found:
            raise ConnectionError(found["error"])
        return found["address"]

    def close(self, wait: bool = True) -> None:
        """End Ray."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        if wait:
            self._process.wait()
            self._process.stdout.close()


def main(cradle: str) -> None:
    """Start Ray, say where it is, and end it when nobody listens any more."""
    node = None
    try:
        try:
            node = _start(cradle)
            said = {"address": node.gcs_address}
        except Exception as error:
            said = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(said), flush=True)
        sys.stdin.read()
    finally:
        if node is not None:
            node.kill_all_processes(check_alive=False, allow_graceful=True)
        shutil.rmtree(Path(cradle).parent, ignore_errors=True)
        os._exit(0)


def _start(cradle: str) -> Any:
    """As `ray.init` begins, without a driver: that is another process."""
    from ray._private import node, parameter
    from ray._private.authentication import authentication_token_setup as tokens

    tokens.ensure_token_if_auth_enabled({}, create_token_if_missing=True)
    with lean(cradle):
        given = parameter.RayParams(num_cpus=limits.cpus(), include_dashboard=False)
        return node.Node(given, head=True, shutdown_at_exit=False, spawn_reaper=True, ray_init_cluster=True)
