"""Ray, on its way up beside everything else, then joined.

On one machine it comes up in a process of its own (`head`), from the moment at which a run on Ray is asked for: while
this one imports, reads data and builds. It is joined in a thread, which lives as long as Ray does: where Ray is started
as everywhere else, in this process, the kernel ends it with the thread that started it.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from threading import Event, Thread
from typing import Any

from simfl.errors import ConfigError
from simfl.runtime import machine as limits
from simfl.runtime.ray.faststart.launcher import RayLauncher
from simfl.runtime.ray.faststart.patches import PLAIN, worth_saying

log = logging.getLogger(__name__)
SETTINGS = {  # environment variables
    "RAY_worker_niceness": "0",  # Ray lowers its workers' priority by 15 unless told not to
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
}
REACH, CLIENT_PORT = 10.0, "10001"  # seconds that an address has to answer; of ray:// without a port
QUIET = {"log_to_driver": False, "configure_logging": False}


class RayStartup:
    """Ray on its way up, then Ray, until `close`."""

    def __init__(self, address: str | None) -> None:
        """One with a head is joined when somebody waits for it: until then this process may fork."""
        for name, value in SETTINGS.items():
            os.environ.setdefault(name, value)
        self.address = place(address)
        self.head = RayLauncher() if _lean(address) else None
        self.error: BaseException | None = None
        self._up, self._over = Event(), Event()
        self._thread: Thread | None = None
        if self.head is None:
            self._join()

    def _join(self) -> None:
        if self._thread is None:
            self._thread = Thread(target=self._live, name="ray")
            self._thread.start()

    def _live(self) -> None:
        try:
            _up(self.address, self.head)
        except BaseException as error:  # raised again by whoever waits
            self.error = error
        self._up.set()
        if self.error is None:
            self._over.wait()
            sys.modules["ray"].shutdown()
        if self.head is not None:
            self.head.close()

    def wait(self) -> None:
        """Returns when Ray is up and joined; raises what went wrong."""
        self._join()
        self._up.wait()
        if self.error is not None:
            raise self.error

    def close(self, wait: bool) -> None:
        """End Ray, or what there is of it; without waiting, that goes on by itself."""
        self._over.set()
        if self._thread is None:
            assert self.head is not None, "whatever has no head is joined at once"
            self.head.close(wait)
        elif wait:
            self._thread.join()

    @property
    def over(self) -> bool:
        """Whether it is to end or has ended."""
        return self._over.is_set()


_current: RayStartup | None = None


@contextmanager
def ahead(backend: str, address: str | None) -> Iterator[None]:
    """For a block that imports before it runs: a Ray that will be started here is on its way from the first moment."""
    with started(address) if backend == "ray" and _lean(address) else nullcontext():
        yield


@contextmanager
def started(address: str | None) -> Iterator[None]:
    """Inside the block Ray is up or on its mode, and ends with it, unless somebody else has started it.

    A block that fails does not wait for Ray's end: what is wrong should be read at once.
    """
    boot = _begin(address)
    try:
        yield
    except BaseException:
        if boot is not None:
            boot.close(wait=False)
        raise
    if boot is not None:
        boot.close(wait=True)


def ray(address: str | None) -> Any:
    """Ray, up: as `started` made it, or started or joined here. ConfigError where nobody answers at the address."""
    if _current is not None and not _current.over:
        _current.wait()
    return _up(place(address), None)


def cradle() -> str | None:
    """Where workers of the Ray that is on its way ask to be born; None: they start as Ray starts them."""
    head = None if _current is None or _current.over else _current.head
    return None if head is None else head.cradle


def _begin(address: str | None) -> RayStartup | None:
    """A new boot; None where Ray is up or on its way already."""
    global _current
    if running():
        return None
    _reach(place(address))  # what is wrong there is said before a run's folder is made
    _current = RayStartup(address)
    return _current


def running() -> bool:
    """Whether Ray is up here or on its way; one that is on its way down is waited for."""
    if _current is not None:
        if not _current.over:
            return True
        _current.close(wait=True)
    return "ray" in sys.modules and bool(sys.modules["ray"].is_initialized())


def place(address: str | None) -> str | None:
    """The address of the Ray to join: the one given, or, as everywhere with Ray, RAY_ADDRESS; None: start one here."""
    return address or os.environ.get("RAY_ADDRESS") or None


def _lean(address: str | None) -> bool:
    """Whether a Ray is started here, and not as everywhere else."""
    return place(address) is None and not os.environ.get(PLAIN)


def _up(address: str | None, head: RayLauncher | None) -> Any:
    """Ray, joined at the address or at the head, or started in this process."""
    import ray

    if not ray.is_initialized():
        for name in ("worker", "authentication.authentication_token_setup"):
            logging.getLogger(f"ray._private.{name}").addFilter(worth_saying)
        try:
            if address:
                _reach(address)
                ray.init(address=address, **QUIET)
            elif head is None or not _joined(ray, head):
                ray.init("local", include_dashboard=False, num_cpus=limits.cpus(), **QUIET)
        except (ConnectionError, ValueError) as error:
            raise ConfigError(f"--address: no Ray cluster answers at {address!r}: {cause(error)}") from None
    return ray


def _reach(address: str | None) -> None:
    """ConfigError where nobody listens at an address: Ray itself would try for minutes, and say so line by line."""
    scheme, _, at = (address or "").rpartition("://")
    host, _, port = at.rpartition(":") if ":" in at else (at, "", CLIENT_PORT if scheme else "")
    if port.isdecimal() and int(port) < 1 << 16:  # else it is `auto`, or something that Ray refuses at once
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=REACH).close()
        except OSError as error:
            raise ConfigError(f"--address: no Ray cluster answers at {address!r}: {error.strerror or error}") from None


def _joined(ray: Any, head: RayLauncher) -> bool:
    """Whether the Ray of the head came up and could be joined; if not, the log says why."""
    try:
        ray.init(head.address(), **QUIET)
        return True
    except Exception as error:
        log.warning("Ray's lean start failed (%s); it is started as usual. %s=1 does so at once", error, PLAIN)
        ray.shutdown()
        head.close(wait=False)
        return False


def cause(error: Exception) -> str:
    """The last line of Ray's account, which says what happened; the others say to whom."""
    return str(error).strip().splitlines()[-1].strip()
