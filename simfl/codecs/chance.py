"""Random bits of a message: a hash of its seed and of each value's place, the same for one client as in a cohort."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from simfl.codecs.base import Context

BITS = 24


def random_bits(contexts: Sequence[Context], count: int, device: torch.device) -> Tensor:
    """Whole numbers in [0, 2^24), int32 [n, count], equal on every device.

    Wellons' 32-bit finaliser 'lowbias32' over a counter, keyed twice; int32 arithmetic wraps, shifts are made logical.
    """
    seed = torch.tensor([context.seed for context in contexts], dtype=torch.int64, device=device)
    low, high = (seed & 0xFFFFFFFF).to(torch.int32), (seed >> 32).to(torch.int32)
    x = torch.arange(count, dtype=torch.int32, device=device) ^ (low * 0x3C6EF35F)[:, None]
    for word in (high, low):
        x = (x ^ ((x >> 16) & 0xFFFF)) * 0x7FEB352D
        x = (x ^ ((x >> 15) & 0x1FFFF) ^ word[:, None]) * -0x7B935975  # 0x846ca68b as a signed number
    x = x ^ ((x >> 16) & 0xFFFF)
    return (x >> 8) & 0xFFFFFF


def uniform(contexts: Sequence[Context], count: int, device: torch.device) -> Tensor:
    """Numbers in [0, 1), float32 [n, count]."""
    return random_bits(contexts, count, device).to(torch.float32) / (1 << BITS)
