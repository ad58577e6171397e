"""Ray, started or joined in a thread of its own while this one reads data and builds.

Starting Ray is mostly waiting: seconds in which libraries can be imported and the model built. The thread lives as long
as Ray does, since the kernel ends Ray's processes with the thread that started them.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any

from simfl.engine import limits
from simfl.engine.lean import PLAIN, lean
from simfl.errors import ConfigError

log = logging.getLogger(__name__)


class Boot:
    """Ray on its way up, then Ray, until `close`."""

    def __init__(self, address: str | None, nursery: str | None = None) -> None:
        """`nursery`: where workers of a Ray that is started here ask to be born; None: they start as Ray does it."""
        self.address, self.nursery = address, nursery
        self.error: BaseException | None = None
        self._up, self._over = Event(), Event()
        self._thread = Thread(target=self._live, name="ray")
        self._thread.start()

    def _live(self) -> None:
        try:
            _up(self.address, self.nursery)
        except BaseException as error:  # raised again by whoever waits
            self.error = error
        self._up.set()
        if self.error is None:
            self._over.wait()
            sys.modules["ray"].shutdown()

    def wait(self) -> None:
        """Returns when Ray is up; raises what went wrong."""
        self._up.wait()
        if self.error is not None:
            raise self.error

    def close(self, wait: bool) -> None:
        """End Ray, or what there is of it; without waiting, the thread goes on until it has."""
        self._over.set()
        if wait:
            self._thread.join()

    @property
    def over(self) -> bool:
        """Whether it is to end or has ended."""
        return self._over.is_set()


_current: Boot | None = None


@contextmanager
def started(address: str | None, nursery: str | None = None) -> Iterator[None]:
    """Inside the block Ray is up or on its way, and ends with it, unless somebody else has started it.

    A block that fails does not wait for Ray's end: what is wrong should be read at once.
    """
    boot = _begin(address, nursery)
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
    return _up(address)


def _begin(address: str | None, nursery: str | None) -> Boot | None:
    """A new boot; None where Ray is up or on its way already."""
    global _current
    if running():
        return None
    _current = Boot(address, nursery)
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


def _up(address: str | None, nursery: str | None = None) -> Any:
    address = place(address)
    os.environ.setdefault("RAY_worker_niceness", "0")  # Ray lowers its workers' priority by 15 unless told not to
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    if not ray.is_initialized():
        for name in ("worker", "authentication.authentication_token_setup"):
            logging.getLogger(f"ray._private.{name}").addFilter(_worth_saying)
        quiet = {"log_to_driver": False, "configure_logging": False}
        try:
            if address:
                ray.init(address=address, **quiet)
            else:
                _start(ray, nursery, quiet)
        except ConnectionError as error:
            raise ConfigError(f"--address: no Ray cluster answers at {address!r}: {cause(error)}") from None
    return ray


def _start(ray: Any, nursery: str | None, quiet: dict[str, Any]) -> None:
    """Start a Ray here, lean; as it starts by itself where that is asked for, or where the lean one did not come up."""
    given = {"include_dashboard": False, "num_cpus": limits.cpus(), **quiet}
    if not os.environ.get(PLAIN):
        try:
            with lean(nursery):
                ray.init("local", **given)
            return
        except Exception as error:
            log.warning("Ray's lean start failed (%s); it is started as usual. %s=1 does so at once", error, PLAIN)
            ray.shutdown()
    ray.init("local", **given)


def _worth_saying(record: logging.LogRecord) -> bool:
    """All but what every start would print: that a thread cannot take SIGTERM, and that the cluster is guarded."""
    return not record.getMessage().startswith(("SIGTERM handler is not set", "Token authentication is enabled"))


def cause(error: Exception) -> str:
    """The last line of Ray's account, which says what happened; the others say to whom."""
    return str(error).strip().splitlines()[-1].strip()
