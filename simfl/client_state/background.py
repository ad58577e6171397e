"""Client states that a thread hashes and writes while the next clients are trained."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from simfl.weights import State

SMALL_BYTES = 1 << 20  # of a state that is written at once: handing it over would take as long
WAITING_BYTES = 256 << 20  # of states that wait for the thread


@dataclass
class BackgroundWriter:
    """A thread that writes states with `write`, in their order; at most `WAITING_BYTES` and one state wait for it."""

    write: Callable[[State], str]  # returns the digest of the state
    _thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "states"))  # starts when needed
    _digests: dict[int, str | Future[str]] = field(default_factory=dict)
    _waiting: deque[tuple[Future[str], int]] = field(default_factory=deque)
    _waiting_bytes: int = 0

    def __enter__(self) -> Self:
        """Return the writer."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the thread, once it has written what was begun."""
        self._thread.shutdown(cancel_futures=True)

    def add(self, client: int, state: State) -> None:
        """Write the state of a client, whose tensors must not change; errors of the disk are raised here or later."""
        num_bytes = sum(t.nbytes for tensors in state.values() for t in tensors.values())
        if num_bytes < SMALL_BYTES and not self._waiting:
            self._digests[client] = self.write(state)
            return
        while self._waiting and self._waiting_bytes + num_bytes > WAITING_BYTES:
            done, released = self._waiting.popleft()
            done.result()
            self._waiting_bytes -= released
        future = self._digests[client] = self._thread.submit(self.write, state)
        self._waiting.append((future, num_bytes))
        self._waiting_bytes += num_bytes

    def digests(self) -> dict[int, str]:
        """Wait for the thread, and return the digest of each client's state."""
        found = self._digests.items()
        return {client: one.result() if isinstance(one, Future) else one for client, one in found}
