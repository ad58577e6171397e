"""The generators that some code may draw from, seeded and watched together."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import nn

from simfl.generators.process import is_for_simfl, system_randomness
from simfl.generators.search import find_generators
from simfl.generators.sources import NumpySource, PythonSource, TorchSource, global_sources, source_of

MASK = (1 << 64) - 1
SYSTEM_DRAWS = (
    "training draws from the randomness of the operating system (an unseeded default_rng(), secrets or SystemRandom),"
    " which no run can repeat; allowed: generators with a seed"
)
SPREAD = 0x9E3779B97F4A7C15  # odd: spreads the seeds of neighbouring keys and generators


class Generators:
    """The global generators and those that some objects hold, seeded and watched together.

    Attributes:
        keyed: Whether each pass of a model seeds them; set once a draw was seen.
    """

    def __init__(self, owners: Mapping[str, object], keyed: bool = False) -> None:
        """Search `owners`, which are named in messages."""
        self.owners, self.keyed = owners, keyed
        self._system_draws, self._is_watching = 0, False
        self._drawn: dict[str, None] = {}  # those of the last block that moved before a pause
        self.refresh()

    def refresh(self) -> None:
        """Search again, for generators that were made since."""
        self.sources = global_sources()
        known = {id(source.generator) for source in self.sources if isinstance(source, (TorchSource, PythonSource))}
        known |= {id(source.owner) for source in self.sources if isinstance(source, NumpySource)}
        for name, owner in self.owners.items():
            found = [(path, one) for path, one in find_generators(owner, name) if id(one) not in known]
            known |= {id(one) for _, one in found}
            self.sources += [source_of(one, path) for path, one in found]
        modules = [owner for owner in self.owners.values() if isinstance(owner, nn.Module)]
        self._tables = [vars(layer) for module in modules for layer in module.modules()]
        self._searched = self._searched_state()
        self._zero: list[object] = []  # positions after `seed(0)`
        self._start: list[object] = []  # positions at the start of the last watched block

    def _searched_state(self) -> tuple[bool, int]:
        """Return what changes where a module gets a new attribute, or the first tensor is put on a GPU."""
        return torch.cuda.is_initialized(), sum(map(len, self._tables))

    def seed(self, key: int) -> None:
        """Set the state of every generator from a 63-bit key."""
        for number, source in enumerate(self.sources, start=1):
            mixed = (key + number * SPREAD) & MASK
            source.seed((mixed ^ mixed >> 29) * SPREAD & MASK)

    @contextmanager
    def watched(self, key: int = 0) -> Iterator[None]:
        """Set every generator to the state of `key` and watch it inside the block.

        Draws of Python and numpy from the randomness of the operating system are counted. Within a watched block it
        has no effect, since the block notices the same draws.
        """
        if self._is_watching:
            yield
            return
        if self._searched != self._searched_state():
            self.refresh()
        with self._watched_from(self._seeded(key)):
            yield

    def _seeded(self, key: int) -> list[object]:
        """Seed every generator and return their positions; key 0 seeds only those that left its state."""
        positions = [source.position() for source in self.sources]
        if not key and positions == self._zero:
            return positions
        self.seed(key)
        positions = [source.position() for source in self.sources]
        if not key:
            self._zero = positions
        return positions

    @contextmanager
    def observed(self) -> Iterator[None]:
        """Watch the generators inside the block from the states that they have."""
        with self._watched_from([source.position() for source in self.sources]):
            yield

    @contextmanager
    def _watched_from(self, start: list[object]) -> Iterator[None]:
        self._start, self._drawn, self._is_watching = start, {}, True
        self._system_draws, thread = 0, threading.get_ident()

        def counted(size: int) -> bytes:
            self._system_draws += threading.get_ident() == thread and not is_for_simfl()
            return os.urandom(size)

        with system_randomness(counted):
            try:
                yield
            finally:
                self._is_watching = False

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Take no notice of draws inside the block, after which the generators are watched again."""
        if self._is_watching:
            self._drawn |= dict.fromkeys(self.drawn())
        yield
        if self._is_watching:
            self.seed(0)

    def positions(self) -> dict[str, object]:
        """Return the position of each generator by its name."""
        return {source.name: source.position() for source in self.sources}

    def drawn(self) -> list[str]:
        """Return the names of the generators that were drawn from since the last watched block began."""
        pairs = zip(self.sources, self._start, strict=True)
        moved = [source.name for source, start in pairs if source.position() != start]
        return [*self._drawn, *(name for name in moved if name not in self._drawn)]

    @property
    def has_system_draws(self) -> bool:
        """True if Python or numpy drew from the operating system's randomness in the last watched block."""
        return self._system_draws > 0
