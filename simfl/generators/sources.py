"""Generators of torch, numpy and Python behind one interface: a state set from a seed, and a position to compare."""

from __future__ import annotations

import random
import sys
from ctypes import c_uint32
from typing import Any, Protocol

import numpy as np
import torch

WORDS = 624  # 32-bit words of a Mersenne Twister, which are followed by its position


class Source(Protocol):
    """A generator, with a name for error messages."""

    name: str

    def seed(self, seed: int) -> None:
        """Set the state from a 64-bit seed."""

    def position(self) -> object:
        """Return a value that differs after a draw."""


class TorchSource:
    """A generator of torch, on any device."""

    def __init__(self, generator: torch.Generator, name: str) -> None:
        self.generator, self.name = generator, name

    def seed(self, seed: int) -> None:
        """Set the state."""
        self.generator.manual_seed(seed >> 1)

    def position(self) -> object:
        """Return the state."""
        return self.generator.get_state().numpy().tobytes()


class NumpySource:
    """numpy's global generator, a `RandomState` or a `Generator`."""

    def __init__(self, owner: np.random.RandomState | np.random.Generator, name: str) -> None:
        self.owner, self.name = owner, name
        self.bits: Any = getattr(owner, "_bit_generator")  # noqa: B009
        is_twister = isinstance(self.bits, np.random.MT19937)
        # the words and the position of a Mersenne Twister, in its memory: a copy of its state takes 60 microseconds
        self.words = (c_uint32 * (WORDS + 1)).from_address(self.bits.ctypes.state_address) if is_twister else None

    def seed(self, seed: int) -> None:
        """Set the state; a normal number that is kept for the next draw is dropped."""
        if self.words is not None and isinstance(self.owner, np.random.RandomState):
            self.owner.seed(seed >> 32)
        else:
            self.bits.state = type(self.bits)(seed).state

    def position(self) -> object:
        """Return the position in the block of a Mersenne Twister with its first word; of others the state."""
        return str(self.bits.state) if self.words is None else (self.words[WORDS], self.words[0])


class PythonSource:
    """A `random.Random`: the global one of Python's `random`, or another."""

    def __init__(self, generator: random.Random, name: str) -> None:
        self.generator, self.name = generator, name
        self.words = _words_of(generator) if _LAYOUT_IS_KNOWN else None

    def seed(self, seed: int) -> None:
        """Set the state."""
        self.generator.seed(seed)

    def position(self) -> object:
        """Return the position in the block of the Mersenne Twister with its first word, and the kept normal number."""
        if self.words is not None:
            return self.words[0], self.words[1], self.generator.gauss_next  # type: ignore[attr-defined]
        _, words, normal = self.generator.getstate()
        return words[-1], words[0], normal


def _words_of(generator: random.Random) -> Any:
    """Return the position and the first word of a generator of CPython in its memory: a copy takes 15 microseconds."""
    return (c_uint32 * 2).from_address(id(generator) + object.__basicsize__)


def _layout_is_known() -> bool:
    """Return whether position and words of a generator are in memory where `_words_of` reads them."""
    if sys.implementation.name != "cpython":
        return False
    generator = random.Random(1)
    found = []
    for _ in range(2):
        *words, position = generator.getstate()[1]
        found.append(tuple(_words_of(generator)) == (position, words[0]))
        generator.random()
    return all(found)


_LAYOUT_IS_KNOWN = _layout_is_known()


def source_of(generator: object, name: str) -> Source:
    """Return a generator of torch, numpy or Python as a source."""
    if isinstance(generator, torch.Generator):
        return TorchSource(generator, f"the torch.Generator {name}")
    if isinstance(generator, random.Random):
        return PythonSource(generator, f"the random.Random {name}")
    assert isinstance(generator, (np.random.Generator, np.random.RandomState))
    return NumpySource(generator, f"the numpy generator {name}")


def global_sources() -> list[Source]:
    """Return the global generators of torch on all devices in use, of numpy and of Python."""
    found: list[Source] = [TorchSource(torch.default_generator, "torch's global generator")]
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        found += [TorchSource(one, "torch's global generator of a GPU") for one in torch.cuda.default_generators]
    of_numpy: np.random.RandomState = getattr(np.random.mtrand, "_rand")  # noqa: B009
    of_python: random.Random = getattr(random, "_inst")  # noqa: B009  (the functions of `random` are its methods)
    return [
        *found,
        NumpySource(of_numpy, "numpy's global generator"),
        PythonSource(of_python, "the global generator of Python's random"),
    ]
