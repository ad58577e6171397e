"""Client memory for a worker that cannot see the run's folder: it comes with the work and goes back with its result.

The driver keeps the files; here nothing outlives a piece of work, and what is new is acknowledged only when the driver
has it on its disk.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from simfl.client_state import EMPTY
from simfl.errors import RunError
from simfl.weights import State, flatten, sha256


class RemoteClientStore:
    """What `FileClientStore` is to a worker that shares a disk with the driver."""

    def __init__(self) -> None:
        self._brought: Mapping[str, State] = {}
        self._new: dict[str, State] = {}

    @contextmanager
    def work(self, brought: Mapping[str, State]) -> Iterator[dict[str, State]]:
        """A piece of work with the states it needs, by digest; the block's value fills with those that it makes."""
        self._brought, self._new = brought, {}
        try:
            yield self._new
        finally:
            self._brought, self._new = {}, {}

    def get(self, digest: str) -> State:
        """The state with this digest, not to be written to; RunError if it did not come along."""
        if digest == EMPTY:
            return {}
        state = self._new.get(digest) or self._brought.get(digest)
        if state is None:
            raise RunError(f"client memory {digest[:12]} did not come with the work")
        return {group: dict(tensors) for group, tensors in state.items()}

    def write(self, state: State) -> str:
        """The digest of a state, which goes back with the result."""
        kept = {group: {n: t.detach().cpu() for n, t in tensors.items()} for group, tensors in state.items()}
        digest = sha256(flatten(kept))
        if digest != EMPTY:
            self._new[digest] = kept
        return digest

    def sync(self, digests: Iterable[str]) -> None:
        """Nothing to do here: the driver makes sure."""
