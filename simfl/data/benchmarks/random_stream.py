"""A stream of choices with a name: fast enough for millions of documents, the same on every machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from simfl.seeds import Name, rng

T = TypeVar("T")
_BLOCK = 128


class Dice:
    """Uniform choices, drawn in blocks from the generator of one name."""

    def __init__(self, *names: Name) -> None:
        self.generator = rng(*names)
        self._block: list[float] = []

    def real(self) -> float:
        """Uniform in [0, 1)."""
        if not self._block:
            self._block = self.generator.random(_BLOCK).tolist()
        return self._block.pop()

    def below(self, count: int) -> int:
        """One of 0 .. count - 1."""
        return int(self.real() * count)

    def between(self, low: int, high: int) -> int:
        """One of low .. high."""
        return low + int(self.real() * (high - low + 1))

    def within(self, low: float, high: float) -> float:
        """Uniform in [low, high)."""
        return low + (high - low) * self.real()

    def pick(self, options: Sequence[T]) -> T:
        """One of these."""
        return options[int(self.real() * len(options))]

    def sample(self, options: Sequence[T], count: int) -> list[T]:
        """`count` different ones of these, in random order."""
        pool = list(options)
        for i in range(count):
            j = i + self.below(len(pool) - i)
            pool[i], pool[j] = pool[j], pool[i]
        return pool[:count]
