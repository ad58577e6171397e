"""Client states of workers that do not see the run's folder: they arrive with a task and return with its result.

The driver keeps the files. A worker keeps no state between tasks, and a new state counts as written when the driver has
it on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from simfl import files
from simfl.client_state import EMPTY, FileClientStore
from simfl.errors import RunError
from simfl.runtime.ray.cluster import ObjectRef
from simfl.weights import State, flatten, sha256


class RemoteClientStore:
    """A worker's `ClientStore` without a shared disk."""

    def __init__(self) -> None:
        self._received: Mapping[str, State] = {}
        self._new: dict[str, State] = {}

    @contextmanager
    def task(self, received: Mapping[str, State]) -> Iterator[dict[str, State]]:
        """Serve a task that came with these states, by digest; the block's value collects the states it writes."""
        self._received, self._new = received, {}
        try:
            yield self._new
        finally:
            self._received, self._new = {}, {}

    def get(self, digest: str) -> State:
        """Return the state with this digest, not to be modified; raise RunError if it did not come with the task."""
        if digest == EMPTY:
            return {}
        state = self._new.get(digest) or self._received.get(digest)
        if state is None:
            raise RunError(f"client state {digest[:12]} did not come with the task")
        return {group: dict(tensors) for group, tensors in state.items()}

    def write(self, state: State) -> str:
        """Keep a state for the way back and return its digest."""
        kept = {group: {n: t.detach().cpu() for n, t in tensors.items()} for group, tensors in state.items()}
        digest = sha256(flatten(kept))
        if digest != EMPTY:
            self._new[digest] = kept
        return digest

    def publish(self) -> None:
        """Do nothing: the driver writes the states to disk."""


class StateTransfer:
    """The driver's side: client states to and from workers that do not see the run's folder."""

    def __init__(self, folder: Path, session: str, put: Callable[[State], ObjectRef]) -> None:
        """Make the marker file in the folder of client states.

        `put` moves a state into Ray's object store and returns a reference.
        """
        self.put = put
        self.store = FileClientStore(folder, cache_bytes=0)  # states that are read go to the object store
        self.remote: set[int] = set()  # workers that do not see the folder
        self.marker = marker_file(folder, session)
        self.marker.touch()

    def send(self, worker: int, digests: Sequence[str]) -> dict[str, ObjectRef]:
        """Return references to the states that a task needs, by digest; none for a worker that sees the folder."""
        needed = set(digests) - {EMPTY, ""} if worker in self.remote else set()
        return {digest: self.put(self.store.get(digest)) for digest in sorted(needed)}

    def receive(self, states: Mapping[str, State]) -> None:
        """Write states that came with a result, before the task counts as done; a checkpoint waits for the disk."""
        if states:
            for state in states.values():
                self.store.write(state)
            self.store.publish()

    def close(self) -> None:
        """Remove the marker file; an error of the disk must not hide what ended the run."""
        with suppress(OSError):
            self.marker.unlink(missing_ok=True)


def marker_file(folder: Path, session: str) -> Path:
    """Return the path of a file that the driver makes: a worker that sees it shares the driver's disk."""
    return folder / f"{files.TEMP}shared-{session}"
