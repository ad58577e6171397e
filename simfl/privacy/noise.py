"""Gaussian noise, added to named tensors by a source of random draws (`simfl.privacy.randomness`).

A draw is named by its purpose (phase, round, client), the standard deviation, the name of the tensor and the index of a
block of its values. So the noise of a tensor depends neither on other tensors nor on the execution mode, and a release
that is repeated after a crash is bit-identical and reveals nothing new.

Noise is drawn in float64 and rounded once, after it was added. The theorems do not cover rounding: outputs of a
floating-point Gaussian can reveal what was added (Mironov 2012). A draw from the system's source is therefore a sum of
four draws, which makes attacks on the lowest bits impractical (Holohan and Braghin 2021).

The CPU draws all noise. Tensors on a GPU are copied to the host once and back once, asynchronously, and several threads
draw blocks of them; each block has its own name, so the result does not depend on the threads. Noise is added in place
in the fetched memory: on some hosts, allocating memory takes longer than drawing.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from simfl.privacy.randomness import Draw, Randomness, normals
from simfl.protocol import Weights
from simfl.seeds import SeedName

BLOCK = 2**15  # values drawn at a time: 256 KiB, which fit into a cache
NUM_THREADS = 4  # with a GPU, whose host has idle cores; without one, every core has its own worker
Block = tuple[str, int, Tensor]  # tensor name, index of the block in the tensor, its values


def noised(tensors: Weights, deviation: float, name: tuple[SeedName, ...], randomness: Randomness) -> Weights:
    """Return tensors plus independent Gaussian noise on every value.

    Args:
        tensors: The tensors, on one device.
        deviation: Standard deviation of the noise.
        name: Names the draws; the deviation, the name of each tensor and the index of each block are added to it.
        randomness: The source of the draws.
    """
    return added(tensors, deviation, normals(randomness, *name, float(deviation).hex()))


def added(tensors: Weights, deviation: float, draw: Draw) -> Weights:
    """Return tensors plus `deviation` times a draw, which may be called by several threads."""
    if deviation == 0.0 or not tensors:
        return tensors
    rows = _fetch(tensors)
    here = _views(rows, tensors)
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
