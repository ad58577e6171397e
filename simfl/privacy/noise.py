"""Gaussian noise: from the run's seed, so that a run can be repeated, or from the system's source.

A seeded draw is named by what it is for (phase, round, client) and by a hash of what it is added to. The same release
made twice, after a crash or a retry, is the same to the bit and gives nothing new away; what differs in one bit gets
noise of its own. Nobody who does not know the seed can tell the noise from true noise, so the seed is a secret.

Both are drawn in float64 and rounded once, after the sum. Rounding is not covered by the theorem: outputs of a
floating-point Gaussian can betray what was added (Mironov 2012). The system's draws are therefore sums of four, which
makes the attack on low bits impractical (Holohan and Braghin 2021); the seeded ones are for simulation.

The CPU draws, wherever a model is trained. What lies on a GPU is fetched once and goes back once, without waiting, and
pieces of it are drawn by several threads: each piece has a name, so that nothing depends on who drew it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from simfl.protocol import Weights
from simfl.seeds import Name, rng
from simfl.weights import sha256

PIECE = 2**16  # values drawn at a time: 512 KiB, what a cache holds
THREADS = 4  # beside a GPU, whose host has little else to do; elsewhere every core has a worker of its own
Draw = Callable[[str, int, int], np.ndarray]  # a tensor's name, a piece's place in it and size: standard normals


def noised(tensors: Weights, deviation: float, name: tuple[Name, ...], secure: bool = False) -> Weights:
    """`tensors` plus independent noise of this standard deviation on every value; `name` says what for."""
    if deviation == 0.0 or not tensors:
        return tensors
    device = next(iter(tensors.values())).device
    here = _moved(tensors, torch.device("cpu"))
    draw = _from_system if secure else seeded(*name, sha256(here))
    sums = {key: t.reshape(-1).to(torch.float64, copy=True) for key, t in here.items()}

    def add(key: str, place: int, values: np.ndarray) -> None:
        values += deviation * draw(key, place, len(values))

    pieces = [(key, place, piece.numpy()) for key, t in sums.items() for place, piece in enumerate(t.split(PIECE))]
    if device.type == "cpu" or len(pieces) == 1:
        for piece in pieces:
            add(*piece)
    else:
        with ThreadPoolExecutor(THREADS) as threads:
            list(threads.map(lambda piece: add(*piece), pieces))
    return _moved({key: sums[key].to(t.dtype).view(t.shape) for key, t in here.items()}, device)


def seeded(*name: Name) -> Draw:
    """Draws that follow from these names, the tensor's and the piece's."""

    def draw(tensor: str, place: int, size: int) -> np.ndarray:
        return rng(*name, tensor, *([place] if place else [])).standard_normal(size)

    return draw


def _from_system(tensor: str, place: int, size: int) -> np.ndarray:
    """Half the sum of four normals by Box and Muller, each from 53 bits of the system's source."""
    bits = np.frombuffer(os.urandom(8 * 4 * size), np.uint64).reshape(4, size) >> 11
    uniform = (bits.astype(np.float64) + 0.5) * 2.0**-53
    radius, angle = np.sqrt(-2 * np.log(uniform[:2])), 2 * np.pi * uniform[2:]
    four = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])
    total: np.ndarray = four.sum(0) / 2
    return total


def _moved(tensors: Weights, device: torch.device) -> Weights:
    """On another device, in one copy for all tensors of a dtype."""
    if all(t.device.type == device.type for t in tensors.values()):
        return tensors
    found: dict[str, Tensor] = {}
    for dtype in {t.dtype: None for t in tensors.values()}:
        some = {name: t for name, t in tensors.items() if t.dtype == dtype}
        flat = torch.cat([t.reshape(-1) for t in some.values()]).to(device, non_blocking=device.type != "cpu")
        parts = flat.split([t.numel() for t in some.values()])
        found |= {name: part.view(t.shape) for (name, t), part in zip(some.items(), parts, strict=True)}
    return {name: found[name] for name in tensors}
