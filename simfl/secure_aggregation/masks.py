"""Masks of secure aggregation (Bonawitz et al. 2017): pairwise masks, which cancel, and one mask of each client alone.

Clients u and v agree on a seed from the secret key of one and the public key of the other. The client with the lower
number adds the mask that the seed expands to, the other one subtracts it. Each client also adds a mask of its own.

This is a simulation: the key agreement is that of Diffie and Hellman in a group of 31 bits, and masks come from a fast
generator (SFC64). Both are too weak to protect anything, and cost about what strong ones do in their number of calls.
"""

from __future__ import annotations

import hashlib
import json
import threading
from dataclasses import dataclass

import numpy as np

from simfl.seeds import SeedName

PRIME, GENERATOR = 2**31 - 1, 7  # 7 generates the whole multiplicative group
SECRET_BYTES = 32


@dataclass(frozen=True)
class ClientSecrets:
    """The secrets of a client in one round: a secret key for pairwise seeds, and the seed of its own mask."""

    key: bytes
    seed: bytes


def secrets_of(*name: SeedName) -> ClientSecrets:
    """Return the secrets with this name."""
    digest = expand(*name)
    return ClientSecrets(digest[:SECRET_BYTES], digest[SECRET_BYTES:])


def expand(*name: SeedName) -> bytes:
    """Return 64 bytes that are a hash of a name."""
    return hashlib.blake2b(json.dumps(name).encode(), digest_size=2 * SECRET_BYTES).digest()


def public_keys(secret_keys: list[bytes]) -> np.ndarray:
    """Return the public key of each secret key, uint64."""
    exponents = np.array([_exponent(key) for key in secret_keys], np.uint64)
    return _power(np.full(len(exponents), GENERATOR, np.uint64), exponents)


def agreed(secret_key: bytes, others: np.ndarray) -> np.ndarray:
    """Return what the owner of a secret key and the owners of public keys agree on, uint64 [others]."""
    return _power(others, np.full(len(others), _exponent(secret_key), np.uint64))


def pair_seed(agreement: int, *name: SeedName) -> bytes:
    """Return the seed of the mask of two clients; `name` holds both numbers, the lower one first."""
    return expand("pair", int(agreement), *name)[:SECRET_BYTES]


def mask(seed: bytes, part: str, count: int, bits: int) -> np.ndarray:
    """Return the mask that a seed expands to for one part of an upload, modulo 2^32 (up to 32 bits) or 2^64."""
    digest = hashlib.blake2b(part.encode(), key=seed, digest_size=24).digest()
    bit_generator = _reused()
    words = np.array([*np.frombuffer(digest, "<u8"), 1], np.uint64)
    bit_generator.state = {"bit_generator": "SFC64", "state": {"state": words}, "has_uint32": 0, "uinteger": 0}
    dtype = word(bits)
    raw = bit_generator.random_raw(-(-count * dtype.itemsize // 8))
    return np.asarray(raw, "<u8").view(dtype)[:count]


def word(bits: int) -> np.dtype:
    """Return the unsigned integers in which sums modulo 2^bits are taken."""
    return np.dtype("<u4") if bits <= 32 else np.dtype("<u8")


def _reused() -> np.random.SFC64:
    """Return one generator per thread; to set its state takes a tenth of the time of a new one."""
    if not hasattr(_REUSED, "bits"):
        _REUSED.bits = np.random.SFC64(0)
    found: np.random.SFC64 = _REUSED.bits
    return found


_REUSED = threading.local()


def _exponent(secret_key: bytes) -> int:
    return int.from_bytes(secret_key) % (PRIME - 1)


def _power(bases: np.ndarray, exponents: np.ndarray) -> np.ndarray:
    """Return powers modulo PRIME, elementwise; products stay below 2^62."""
    result, square, rest = np.ones_like(bases), bases % PRIME, exponents.copy()
    while rest.any():
        result = np.where(rest & 1, result * square % PRIME, result)
        square, rest = square * square % PRIME, rest >> 1
    return result
