"""Lease of a URL: the object `.lease` names the process that writes there, so that no second one does.

The holder renews the lease with a new counter. A process that finds a lease waits until it has seen a renewal, and is
refused, or until it has seen none for `EXPIRY` seconds of its own clock, and takes over; clocks of machines are never
compared. The holder reads the lease before each upload: once another process has taken over, it uploads nothing more.
"""

from __future__ import annotations

import json
import os
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from threading import Event, Thread

from simfl.errors import RunError
from simfl.runs.storage import Storage
from simfl.safe_text import mask_secrets

LEASE = ".lease"  # name of the object
RENEWAL = 10.0  # seconds between two renewals
EXPIRY = 40.0  # seconds without a renewal after which a lease is taken over
POLL_SECONDS = 1.0  # between two reads of the lease of another process
SETTLE_SECONDS = 1.0  # after a takeover: of several processes that take over at once, the last to write holds the lease


@dataclass
class Lease:
    """A lease that this process holds until `release`."""

    storage: Storage
    owner: Mapping[str, object] = field(default_factory=lambda: _owner())
    _count: int = 0
    _released: Event = field(default_factory=Event)

    def acquire(self, on_wait: Callable[[str], object]) -> None:
        """Acquire the lease; call `on_wait` with a message before waiting for the expiry of another one.

        Raises:
            RunError: Another process writes at the URL.
        """
        while not self.storage.create(LEASE, self._content()):
            found = self.storage.read(LEASE)
            if found is None:
                continue  # it was released in between
            if not _ended(found):
                self._wait(found, on_wait)
            self.storage.write(LEASE, self._content())
            time.sleep(SETTLE_SECONDS)
            self.check()
            break
        Thread(target=self._renew, name="lease", daemon=True).start()

    def check(self) -> None:
        """Check that this process still holds the lease.

        Raises:
            RunError: Another process has taken over, or the lease was deleted.
        """
        found = self.storage.read(LEASE)
        if found is None or _holder(found).get("token") != self.owner["token"]:
            by = f"{_shown(found)} has taken over" if found else f"its lease {LEASE} was deleted"
            raise RunError(f"{mask_secrets(self.storage.url)}: {by}; this process writes nothing more there")

    def release(self) -> None:
        """Delete the lease, unless another process has taken over."""
        self._released.set()
        with suppress(RunError):  # a lease that stays expires
            self.check()
            self.storage.remove([LEASE])

    def _wait(self, found: bytes, on_wait: Callable[[str], object]) -> None:
        """Wait until a lease has expired; RunError once it is renewed."""
        url = mask_secrets(self.storage.url)
        on_wait(f"{url}: {_shown(found)} has a lease; waiting up to {EXPIRY:g} s for its expiry")
        deadline = time.monotonic() + EXPIRY
        while time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
            now = self.storage.read(LEASE)
            if now is None:
                return
            if now != found:
                raise RunError(f"{url}: {_shown(now)} is writing this run; stop it first, or give another --out")

    def _renew(self) -> None:
        while not self._released.wait(RENEWAL):
            with suppress(RunError):  # the next upload reports it
                self.check()
                self._count += 1
                self.storage.write(LEASE, self._content())

    def _content(self) -> bytes:
        return json.dumps({**self.owner, "renewals": self._count, "expires_after_seconds": EXPIRY}).encode()


@contextmanager
def leased(storage: Storage, on_wait: Callable[[str], object]) -> Iterator[Lease]:
    """Hold the lease of a URL for the block.

    Raises:
        RunError: Another process writes at the URL.
    """
    lease = Lease(storage)
    lease.acquire(on_wait)
    try:
        yield lease
    finally:
        lease.release()


def _owner() -> dict[str, object]:
    return {"host": socket.gethostname(), "process": os.getpid(), "boot": _boot(), "token": uuid.uuid4().hex}


def _boot() -> str:
    """Return what identifies this machine until it restarts, and this container; empty where the system has none."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return f"{file.read().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _holder(content: bytes) -> Mapping[str, object]:
    """Return the content of a lease; empty if it is none."""
    try:
        found = json.loads(content)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _shown(content: bytes) -> str:
    holder = _holder(content)
    return f"process {holder.get('process', '?')} on {holder.get('host', '?')}"


def _ended(content: bytes) -> bool:
    """Return whether the holder was a process of this machine that has ended."""
    holder = _holder(content)
    process, boot = holder.get("process"), _boot()
    if not boot or holder.get("boot") != boot or not isinstance(process, int) or process == os.getpid():
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False
