"""Detection of a Ray that has ended or is frozen, from a thread of the driver.

A driver that loses its raylet or Ray's GCS (the servers of its node and of the cluster) is ended by Ray, after up to a
minute and without a checkpoint, or waits forever. The monitor greets both servers every second, by the first bytes of
HTTP/2, which every gRPC server answers. A closed port means that the server has ended; no answer, that it is frozen.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event, Thread

from simfl.errors import ClusterError
from simfl.runtime.ray.cluster import RayModule

GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))  # preface and empty settings
INTERVAL = 1.0  # seconds between two greetings
CLOSED_SECONDS = 2.0  # time without an open port after which a server of this machine has ended
RESTART_SECONDS = 30.0  # the same for another machine, where the head may be restarted; Ray gives up after 60
FROZEN_SECONDS = 30.0  # longest time without an answer after which a server is frozen
STUCK = 2  # times `frozen_seconds` after which a driver that was interrupted is stuck in a call of Ray
SUPERVISED = "SIMFL_SUPERVISED"  # environment variable: process that a parent supervises, which reports its end
LOST = 3  # exit code of a stuck driver
SHARE = 0.5  # of the watchdog's limit that the monitor waits at most
RESUME = "the run is saved up to its last finished round; resume it with the same command and --resume"


@dataclass
class Server:
    """A server of Ray that the driver depends on."""

    name: str
    host: str
    port: int
    closed_seconds: float = CLOSED_SECONDS
    frozen_seconds: float = FROZEN_SECONDS
    answered: float = field(default_factory=time.monotonic)  # time of the last answer

    def problem(self, patient: bool = True) -> str:
        """Return why the server is lost, or an empty string; with `patient`, only if this has lasted for long enough.

        Takes up to `frozen_seconds` if the server accepts connections and does not answer.
        """
        where = f"{self.name} at {self.host}:{self.port}"
        try:
            with socket.create_connection((self.host, self.port), timeout=self.frozen_seconds) as connection:
                connection.sendall(GREETING)
                if not connection.recv(1):
                    raise ConnectionResetError
            self.answered = time.monotonic()
        except TimeoutError:
            return f"{where} has not answered for {self.frozen_seconds:g} s"
        except OSError:
            if not patient or time.monotonic() - self.answered >= self.closed_seconds:
                return f"{where} has ended"
        return ""


class RayMonitor:
    """A thread that greets Ray's servers, and calls `on_lost` once when one is lost."""

    def __init__(self, servers: list[Server], on_lost: Callable[[], object]) -> None:
        self.servers, self.on_lost = servers, on_lost
        self.lost = ""  # the server that is lost, and why
        self._closing = Event()
        self._thread = Thread(target=self._watch, name="ray monitor", daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._closing.wait(INTERVAL):
            for server in self.servers:
                if (problem := server.problem()) and not self._closing.is_set():
                    self.lost = problem
                    self.on_lost()
                    if not self._closing.wait(STUCK * server.frozen_seconds):
                        _leave_if_supervised()
                    return

    def raise_if_lost(self) -> None:
        """Raise ClusterError if a server is lost; a closed port counts at once.

        Call it after an error that the end of Ray may have caused.
        """
        if not self.lost:
            self.lost = next(filter(None, (server.problem(patient=False) for server in self.servers)), "")
        if self.lost:
            raise self.error()

    def error(self) -> ClusterError:
        """Return the error that ends the run."""
        return ClusterError(f"Ray is lost: {self.lost}; {RESUME}")

    def close(self) -> None:
        """Stop the thread; a greeting that is under way is not waited for."""
        self._closing.set()


def _leave_if_supervised() -> None:
    """End the process if its main thread is stuck in a call to a lost Ray, and a parent is there to report it.

    Python handles a signal between two of its instructions, and a call of Ray may wait for a frozen server without end.
    """
    if os.environ.get(SUPERVISED) == str(os.getpid()):
        os._exit(LOST)


def servers_of(ray: RayModule, watchdog: float | None) -> list[Server]:
    """Return the servers that this process depends on: the raylet of its node, and the GCS."""
    context = ray.get_runtime_context()
    node = next(node for node in ray.nodes() if node["NodeID"] == context.get_node_id())
    here = str(node["NodeManagerAddress"])
    host, _, port = str(context.gcs_address).rpartition(":")
    limit = FROZEN_SECONDS if watchdog is None else min(FROZEN_SECONDS, SHARE * watchdog)
    restart = CLOSED_SECONDS if host == here else min(RESTART_SECONDS, limit)
    return [
        Server("Ray's raylet", here, int(node["NodeManagerPort"]), CLOSED_SECONDS, limit),
        Server("Ray's GCS", host.strip("[]"), int(port), restart, limit),
    ]


@contextmanager
def monitored(ray: RayModule, watchdog: float | None, on_lost: Callable[[], object]) -> Iterator[RayMonitor]:
    """Watch the servers of Ray for the block; `on_lost` is called in another thread.

    Args:
        ray: The module, connected.
        watchdog: Seconds within which a hang must end; None: no limit.
        on_lost: Called once when a server is lost.
    """
    encrypted = os.environ.get("RAY_USE_TLS", "0") == "1"  # such servers do not answer the greeting
    monitor = RayMonitor([] if encrypted else servers_of(ray, watchdog), on_lost)
    try:
        yield monitor
    finally:
        monitor.close()
