"""Gaussian noise: from the run's seed, so that a run can be repeated, or from the system's source.

A seeded draw is named by what it is for (phase, round, client) and by a hash of what it is added to. The same release
made twice, after a crash or a retry, is the same to the bit and gives nothing new away; what differs in one bit gets
noise of its own. Nobody who does not know the seed can tell the noise from true noise, so the seed is a secret.

Both are drawn in float64 and rounded once, after the sum. Rounding is not covered by the theorem: outputs of a
floating-point Gaussian can betray what was added (Mironov 2012). The system's draws are therefore sums of four, which
makes the attack on low bits impractical (Holohan and Braghin 2021); the seeded ones are for simulation.

The CPU draws, wherever a model is trained. What lies on a GPU is fetched once and goes back once, without waiting, and
pieces of it are drawn by several threads: each piece has a name, so that nothing depends on who drew it. Noise is added
where the values were fetched to: fresh memory costs more than the draws on some hosts.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from simfl.protocol import Weights
from simfl.seeds import Name, rng
from simfl.weights import sha256

PIECE = 2**15  # values drawn at a time: 256 KiB, what a cache holds
THREADS = 4  # beside a GPU, whose host has little else to do; elsewhere every core has a worker of its own
Draw = Callable[[str, int, np.ndarray], None]  # a tensor's name, a piece's place in it, what to fill: standard normals
Piece = tuple[str, int, Tensor]  # the tensor's name, the piece's place in it, its values


def noised(tensors: Weights, deviation: float, name: tuple[Name, ...], secure: bool = False) -> Weights:
    """`tensors` plus independent noise of this standard deviation on every value; `name` says what for."""
    if deviation == 0.0 or not tensors:
        return tensors
    rows = _fetched(tensors)
    here = _views(rows, tensors)
    draw = _from_system if secure else seeded(*name, sha256(here))
    pieces = [(key, place, piece) for key, t in here.items() for place, piece in enumerate(t.reshape(-1).split(PIECE))]
    device = next(iter(tensors.values())).device
    if device.type == "cpu":
        _add(pieces, deviation, draw)
        return here
    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(lambda k: _add(pieces[k::THREADS], deviation, draw), range(THREADS)))
    return _views([row.to(device, non_blocking=True) for row in rows], tensors)


def _add(pieces: Sequence[Piece], deviation: float, draw: Draw) -> None:
    """Noise on each piece, in its place; the sum is rounded once."""
    memory = np.empty(PIECE)
    for tensor, place, values in pieces:
        noise = memory[: len(values)]
        draw(tensor, place, noise)
        noise *= deviation
        values.copy_(torch.from_numpy(noise).add_(values))


def _fetched(tensors: Weights) -> list[Tensor]:
    """All values of each dtype in a row, on the CPU, in memory of their own that a GPU can read by itself."""
    rows = [torch.cat([tensors[name].reshape(-1) for name in names]) for names in _by_dtype(tensors)]
    return [
        row if row.device.type == "cpu" else torch.empty(row.shape, dtype=row.dtype, pin_memory=True).copy_(row)
        for row in rows
    ]


def _views(rows: Sequence[Tensor], like: Weights) -> Weights:
    """The tensors that lie in such rows."""
    found: Weights = {}
    for row, names in zip(rows, _by_dtype(like), strict=True):
        parts = row.split([like[name].numel() for name in names])
        found |= {name: part.view(like[name].shape) for name, part in zip(names, parts, strict=True)}
    return {name: found[name] for name in like}


def _by_dtype(tensors: Weights) -> list[list[str]]:
    dtypes = {t.dtype: None for t in tensors.values()}
    return [[name for name, t in tensors.items() if t.dtype == dtype] for dtype in dtypes]


def seeded(*name: Name) -> Draw:
    """Draws that follow from these names, the tensor's and the piece's."""

    def draw(tensor: str, place: int, out: np.ndarray) -> None:
        rng(*name, tensor, *([place] if place else [])).standard_normal(out=out)

    return draw


def _from_system(tensor: str, place: int, out: np.ndarray) -> None:
    """Half the sum of four normals by Box and Muller, each from 53 bits of the system's source."""
    bits = np.frombuffer(os.urandom(8 * 4 * len(out)), np.uint64).reshape(4, len(out)) >> 11
    uniform = (bits.astype(np.float64) + 0.5) * 2.0**-53
    radius, angle = np.sqrt(-2 * np.log(uniform[:2])), 2 * np.pi * uniform[2:]
    out[:] = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)]).sum(0) / 2
