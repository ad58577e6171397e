"""Random numbers inside a loss: a hash of the visit's key, the local step and a name, the same in both ways."""

from __future__ import annotations

import torch
from torch import Tensor

from simfl.protocol import Visit

STEP = 0x5851F42D4C957F2D  # odd: keys of different steps stay apart


def uniform(visit: Visit, names: Tensor, count: int) -> Tensor:
    """Numbers in [0, 1), [*names.shape, count]: a row for each of these names (int64) at this local step.

    Wellons' 32-bit finaliser 'lowbias32' over a counter, keyed twice; int32 arithmetic wraps, shifts are made logical.
    """
    key = visit.key + (2 * visit.step.to(torch.int64) + 1) * STEP + names * 0x3C6EF372FE94F82B
    low, high = (key & 0xFFFFFFFF).to(torch.int32), (key >> 32).to(torch.int32)
    x = torch.arange(count, dtype=torch.int32, device=names.device) ^ (low * 0x3C6EF35F)[..., None]
    for word in (high, low):
        x = (x ^ ((x >> 16) & 0xFFFF)) * 0x7FEB352D
        x = (x ^ ((x >> 15) & 0x1FFFF) ^ word[..., None]) * -0x7B935975  # 0x846ca68b as a signed number
    x = x ^ ((x >> 16) & 0xFFFF)
    return ((x >> 8) & 0xFFFFFF).to(torch.float32) / (1 << 24)
