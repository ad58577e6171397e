"""The randomized Hadamard rotation, which spreads a vector over its coordinates (Suresh et al. 2017).

y = H·diag(s)·x / √D, with signs s that server and clients draw from a public seed, and x padded with zeros to D = 2^k.
It keeps the norm, and each coordinate of y is sub-Gaussian with variance proxy |x|² / D.
"""

from __future__ import annotations

import numpy as np

from simfl.seeds import SeedName, rng


def signs(count: int, *name: SeedName) -> np.ndarray:
    """Return random signs with this name, float64 [count]."""
    return 2.0 * rng("rotation", *name).integers(0, 2, count) - 1.0


def rotate(rows: np.ndarray, sign: np.ndarray) -> np.ndarray:
    """Return rows [n, D], D a power of two, rotated."""
    return _transform(rows * sign)


def rotate_back(rows: np.ndarray, sign: np.ndarray) -> np.ndarray:
    """Return the inverse of `rotate`."""
    rotated: np.ndarray = _transform(rows) * sign
    return rotated


def _transform(rows: np.ndarray) -> np.ndarray:
    """Return the orthonormal Walsh-Hadamard transform of rows [n, D] in float64: log2(D) passes."""
    n, size = rows.shape
    values, half = rows.astype(np.float64), 1
    while half < size:
        pairs = values.reshape(n, size // (2 * half), 2, half)
        values = np.stack([pairs[:, :, 0] + pairs[:, :, 1], pairs[:, :, 0] - pairs[:, :, 1]], 2).reshape(n, size)
        half *= 2
    return values / np.sqrt(size)
