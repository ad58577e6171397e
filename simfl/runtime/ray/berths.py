"""Where workers are: who does not see the run's folder, and how client memory comes there and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from simfl.client_state import EMPTY, FileClientStore
from simfl.runtime.ray.actor import WorkerLocation, marker
from simfl.runtime.worker import WorkerConfig
from simfl.weights import State


class Berths:
    """The driver's side of it, as long as its pool is open."""

    def __init__(self, setup: WorkerConfig, put: Callable[[State], Any], say: Callable[[str], None]) -> None:
        """`put`: into Ray's object store; gives a reference."""
        self.setup, self.put, self.say = setup, put, say
        self.store = FileClientStore(
            setup.memory, cache_bytes=0
        )  # what is read here goes into the object store, and no more
        self.apart: set[int] = set()  # places of workers that do not see its folder
        self.kinds: set[str] = set()  # of processors
        self.marker = marker(setup.memory, setup.sitting)
        self.marker.touch()

    def note(self, place: int, berth: WorkerLocation) -> None:
        """A worker has begun at a place; says, once, what a run on several machines should know."""
        if berth.apart and not self.apart:
            self.say(f"a worker does not see {self.setup.memory.parent}: client memory travels through Ray")
        if self.kinds and berth.kind not in self.kinds:
            kinds = ", ".join(sorted({*self.kinds, berth.kind}))
            self.say(
                f"workers differ ({kinds}): sums may differ in their last bits by who trained what; where modes of"
                " training are tried, one worker tries for all"
            )
        (self.apart.add if berth.apart else self.apart.discard)(place)
        self.kinds.add(berth.kind)

    def carry(self, place: int, digests: Sequence[str]) -> dict[str, Any]:
        """References to the memory that work needs there, which the worker follows; none where it sees the folder."""
        wanted = set(digests) - {EMPTY, ""} if place in self.apart else set()
        return {digest: self.put(self.store.get(digest)) for digest in sorted(wanted)}

    def keep(self, states: Mapping[str, State]) -> None:
        """Memory that came back with a result, on the disk before the work counts as done."""
        if states:
            self.store.put_all(list(states.values()))

    def close(self) -> None:
        """Take the marker away, if the disk still lets: at the end of a run, what ended it matters more."""
        with suppress(OSError):
            self.marker.unlink(missing_ok=True)
