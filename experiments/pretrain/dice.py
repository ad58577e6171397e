"""Random numbers on the device: all of the recipe's drawing comes from one generator there, in a fixed order."""

from __future__ import annotations

import torch
from torch import Tensor


class Dice:
    """One generator on one device."""

    def __init__(self, device: torch.device, seed: int) -> None:
        self.device = device
        self.generator = torch.Generator(device).manual_seed(seed)

    def uniform(self, *shape: int) -> Tensor:
        """Numbers in [0, 1)."""
        return torch.rand(shape, generator=self.generator, device=self.device)

    def integers(self, low: int, high: int, *shape: int) -> Tensor:
        """Integers in [low, high)."""
        return torch.randint(low, high, shape, generator=self.generator, device=self.device)

    def pick(self, weights: Tensor, count: int) -> Tensor:
        """`count` positions drawn by weight."""
        return torch.bucketize(self.uniform(count), weights.cumsum(0) / weights.sum()).clamp_max(len(weights) - 1)
