"""Every random choice has a name, and its seed is a hash of that name.

Nothing draws from a global generator or from the order in which things happen, so a visit can be repeated alone, on any
worker, at any time, with the same bits.
"""

from __future__ import annotations

import hashlib
import json
import secrets

import numpy as np

Name = str | int


def seed_for(*names: Name) -> int:
    """A 63-bit seed from a list of names, for example `seed_for(seed, "sample", phase, round)`."""
    text = json.dumps([str(n) if isinstance(n, str) else int(n) for n in names])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def unrepeatable() -> np.random.Generator:
    """A generator keyed by the system's source, for choices that nobody may be able to make again."""
    return np.random.Generator(np.random.Philox(key=secrets.randbits(128)))


def rng(*names: Name) -> np.random.Generator:
    """A counter-based generator of its own for the choice with this name."""
    return np.random.Generator(np.random.Philox(key=seed_for(*names)))
