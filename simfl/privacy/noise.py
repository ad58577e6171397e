"""Gaussian noise: from the run's seed, so that a run can be repeated, or from the system's source.

A seeded draw is named by what it is for (phase, round, client) and by a hash of what it is added to. The same release
made twice, after a crash or a retry, is the same to the bit and gives nothing new away; what differs in one bit gets
noise of its own. Nobody who does not know the seed can tell the noise from true noise, so the seed is a secret.

Both are drawn in float64 and rounded once, after the sum. Rounding is not covered by the theorem: outputs of a
floating-point Gaussian can betray what was added (Mironov 2012). The system's draws are therefore sums of four, which
makes the attack on low bits impractical (Holohan and Braghin 2021); the seeded ones are for simulation.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable

import numpy as np
import torch

from simfl.protocol import Weights
from simfl.seeds import Name, rng
from simfl.weights import sha256

Draw = Callable[[str, tuple[int, ...]], np.ndarray]  # a tensor's name and shape to standard normal values, float64


def noised(tensors: Weights, deviation: float, name: tuple[Name, ...], secure: bool = False) -> Weights:
    """`tensors` plus independent noise of this standard deviation on every value; `name` says what for."""
    if deviation == 0.0:
        return tensors
    draw = _from_system if secure else seeded(*name, sha256(tensors))
    return {key: _sum(t, deviation * draw(key, tuple(t.shape))) for key, t in tensors.items()}


def seeded(*name: Name) -> Draw:
    """Draws that follow from these names and the tensor's."""
    return lambda tensor, shape: rng(*name, tensor).standard_normal(shape)


def _sum(tensor: torch.Tensor, noise: np.ndarray) -> torch.Tensor:
    total = tensor.to("cpu", torch.float64) + torch.from_numpy(noise)
    return total.to(tensor.dtype).to(tensor.device)


def _from_system(tensor: str, shape: tuple[int, ...]) -> np.ndarray:
    """Half the sum of four normals by Box and Muller, each from 53 bits of the system's source."""
    count = math.prod(shape)
    bits = np.frombuffer(os.urandom(8 * 4 * count), np.uint64).reshape(4, count) >> 11
    uniform = (bits.astype(np.float64) + 0.5) * 2.0**-53
    radius, angle = np.sqrt(-2 * np.log(uniform[:2])), 2 * np.pi * uniform[2:]
    four = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])
    total: np.ndarray = four.sum(0) / 2
    return total.reshape(shape)
