"""Gaussian noise, from the run's seed, so that a run can be repeated, or from the system's random source.

A seeded draw is keyed by its purpose (phase, round, client) and by a hash of the values that it is added to. A release
that is repeated after a crash or a retry is bit-identical and reveals nothing new; values that differ in one bit get
different noise. Without the seed, the noise is indistinguishable from random noise, so the seed must be kept secret.

Noise is drawn in float64 and rounded once, after it was added. The theorems do not cover rounding: outputs of a
floating-point Gaussian can reveal what was added (Mironov 2012). A draw from the system's source is therefore a sum of
four draws, which makes attacks on the lowest bits impractical (Holohan and Braghin 2021). Seeded draws are for
simulation.

The CPU draws all noise. Tensors on a GPU are copied to the host once and back once, asynchronously, and several threads
draw blocks of them; each block has its own key, so the result does not depend on the threads. Noise is added in place
in the fetched memory: on some hosts, allocating memory takes longer than drawing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from simfl.protocol import Weights
from simfl.seeds import SeedName, rng
from simfl.weights import sha256

BLOCK = 2**15  # values drawn at a time: 256 KiB, which fit into a cache
NUM_THREADS = 4  # with a GPU, whose host has idle cores; without one, every core has its own worker
Draw = Callable[[str, int, np.ndarray], None]  # fills an array with standard normals, given tensor name and block index
Block = tuple[str, int, Tensor]  # tensor name, index of the block in the tensor, its values


def noised(tensors: Weights, deviation: float, name: tuple[SeedName, ...], secure: bool = False) -> Weights:
    """Return tensors plus independent Gaussian noise on every value.

    Args:
        tensors: The tensors, on one device.
        deviation: Standard deviation of the noise.
        name: Names the seeded draws.
        secure: Draw from the system's random source.
    """
    if deviation == 0.0 or not tensors:
        return tensors
    rows = _fetch(tensors)
    here = _views(rows, tensors)
    draw = _from_system if secure else seeded(*name, sha256(here))
    blocks = [(key, i, block) for key, t in here.items() for i, block in enumerate(t.reshape(-1).split(BLOCK))]
    device = next(iter(tensors.values())).device
    if device.type == "cpu":
        _add(blocks, deviation, draw)
        return here
    with ThreadPoolExecutor(NUM_THREADS) as threads:
        list(threads.map(lambda k: _add(blocks[k::NUM_THREADS], deviation, draw), range(NUM_THREADS)))
    return _views([row.to(device, non_blocking=True) for row in rows], tensors)


def _add(blocks: Sequence[Block], deviation: float, draw: Draw) -> None:
    """Add noise to each block in place; the sum is rounded once."""
    memory = np.empty(BLOCK)
    for tensor, index, values in blocks:
        noise = memory[: len(values)]
        draw(tensor, index, noise)
        noise *= deviation
        values.copy_(torch.from_numpy(noise).add_(values))


def _fetch(tensors: Weights) -> list[Tensor]:
    """Copy the values of each dtype into one row on the CPU; from a GPU, into pinned memory."""
    rows = [torch.cat([tensors[name].reshape(-1) for name in names]) for names in _by_dtype(tensors)]
    return [
        row if row.device.type == "cpu" else torch.empty(row.shape, dtype=row.dtype, pin_memory=True).copy_(row)
        for row in rows
    ]


def _views(rows: Sequence[Tensor], like: Weights) -> Weights:
    """Return views of such rows, with the names and shapes of `like`."""
    found: Weights = {}
    for row, names in zip(rows, _by_dtype(like), strict=True):
        parts = row.split([like[name].numel() for name in names])
        found |= {name: part.view(like[name].shape) for name, part in zip(names, parts, strict=True)}
    return {name: found[name] for name in like}


def _by_dtype(tensors: Weights) -> list[list[str]]:
    dtypes = {t.dtype: None for t in tensors.values()}
    return [[name for name, t in tensors.items() if t.dtype == dtype] for dtype in dtypes]


def seeded(*name: SeedName) -> Draw:
    """Return a draw that is determined by these names, the tensor's name and the block's index."""

    def draw(tensor: str, index: int, out: np.ndarray) -> None:
        rng(*name, tensor, *([index] if index else [])).standard_normal(out=out)

    return draw


def _from_system(tensor: str, index: int, out: np.ndarray) -> None:
    """Draw half the sum of four normals (Box and Muller), each from 53 bits of the system's source."""
    bits = np.frombuffer(os.urandom(8 * 4 * len(out)), np.uint64).reshape(4, len(out)) >> 11
    uniform = (bits.astype(np.float64) + 0.5) * 2.0**-53
    radius, angle = np.sqrt(-2 * np.log(uniform[:2])), 2 * np.pi * uniform[2:]
    out[:] = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)]).sum(0) / 2
