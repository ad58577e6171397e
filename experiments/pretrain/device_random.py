"""Random numbers on the device: all random draws of the recipe come from one generator there, in a fixed order."""

from __future__ import annotations

import torch
from torch import Tensor


class DeviceRandom:
    """One random generator on one device."""

    def __init__(self, device: torch.device, seed: int) -> None:
        self.device = device
        self.generator = torch.Generator(device).manual_seed(seed)

    def uniform(self, *shape: int) -> Tensor:
        """Return numbers in [0, 1)."""
        return torch.rand(shape, generator=self.generator, device=self.device)

    def integers(self, low: int, high: int, *shape: int) -> Tensor:
        """Return integers in [low, high)."""
        return torch.randint(low, high, shape, generator=self.generator, device=self.device)

    def choice(self, weights: Tensor, count: int) -> Tensor:
        """Return `count` indices drawn with probabilities proportional to the weights."""
        return torch.bucketize(self.uniform(count), weights.cumsum(0) / weights.sum()).clamp_max(len(weights) - 1)
