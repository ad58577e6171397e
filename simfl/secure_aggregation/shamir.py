"""Shamir's secret sharing over the field of integers modulo 65537 (Shamir 1979).

A secret of 32 bytes is 16 words of 16 bits. Each word is the value at 0 of a polynomial of degree t − 1, and a share
holds the 16 values at one point, of 17 bits each. Any t shares determine the secret, and fewer determine nothing.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

PRIME = 65537
WORDS = 16  # of a secret
SHARE_BYTES = WORDS * 17 // 8
MAX_HOLDERS = PRIME - 1


def share(secret: bytes, coefficients: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Return the shares of a secret at some points, int64 [points, 16].

    Args:
        secret: 32 bytes.
        coefficients: Uniform integers in [0, 65537), int64 [t − 1, 16], of the powers 1 to t − 1.
        points: Distinct points in [1, 65536], int64 [points].
    """
    value = np.zeros((len(points), WORDS), np.int64)
    for row in coefficients[::-1]:
        value = (value + row) * points[:, None] % PRIME
    return (value + np.frombuffer(secret, "<u2").astype(np.int64)) % PRIME


def recover(points: np.ndarray, shares: np.ndarray) -> bytes:
    """Return the secret from t shares, int64 [t, 16], at their points, int64 [t]."""
    words = (_weights(tuple(points.tolist()))[:, None] * shares % PRIME).sum(0) % PRIME
    if words.max() >= 1 << 16:
        raise ValueError("these shares belong to no secret of 32 bytes")
    return words.astype("<u2").tobytes()


def pack(shares: np.ndarray) -> bytes:
    """Return one share, int64 [16], as bytes of 17 bits per word."""
    bits = (shares[:, None] >> np.arange(17)) & 1
    return np.packbits(bits.astype(np.uint8).reshape(-1)).tobytes()


@lru_cache(maxsize=64)
def _weights(points: tuple[int, ...]) -> np.ndarray:
    """Return the Lagrange weights of these points at 0, int64."""
    found = []
    for i, x in enumerate(points):
        above = below = 1
        for j, y in enumerate(points):
            if i != j:
                above, below = above * y % PRIME, below * (y - x) % PRIME
        found.append(above * pow(below, -1, PRIME) % PRIME)
    return np.array(found, np.int64)
