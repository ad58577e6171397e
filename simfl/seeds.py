"""Every random choice has a name, and its seed is a hash of that name.

Nothing draws from a global generator or from the order in which things happen, so a visit can be repeated alone, on any
worker, at any time, with the same bits.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import threading
from functools import lru_cache

import numpy as np

Name = str | int


def seed_for(*names: Name) -> int:
    """A 63-bit seed from a list of names, for example `seed_for(seed, "sample", phase, round)`."""
    text = "[" + ", ".join([_quoted(n) if isinstance(n, str) else str(int(n)) for n in names]) + "]"  # JSON
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


@lru_cache(1024)
def _quoted(name: str) -> str:
    return json.dumps(str(name))


def unrepeatable() -> np.random.Generator:
    """A generator keyed by the system's source, for choices that nobody may be able to make again."""
    return np.random.Generator(np.random.Philox(key=secrets.randbits(128)))


def rng(*names: Name) -> np.random.Generator:
    """A counter-based generator of its own for the choice with this name."""
    return np.random.Generator(np.random.Philox(key=seed_for(*names)))


def passing_rng(*names: Name) -> np.random.Generator:
    """The generator of `rng`, until this thread asks for the next one: made in a sixth of the time."""
    if not hasattr(_LENT, "generator"):
        _LENT.bits = np.random.Philox(key=0)
        _LENT.generator, _LENT.state = np.random.Generator(_LENT.bits), _LENT.bits.state
    state = _LENT.state
    state["state"]["key"][0] = seed_for(*names)
    _LENT.bits.state = state  # counter and buffer as they were at first
    generator: np.random.Generator = _LENT.generator
    return generator


_LENT = threading.local()
