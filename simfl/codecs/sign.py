"""One bit a value: its sign, times the mean magnitude of the tensor (EF-SignSGD, Karimireddy et al. 2019).

The payload is the mean magnitude in float32, then eight signs a byte.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from simfl.codecs.base import Codec, Context, as_bytes, as_values
from simfl.codecs.bits import bit_bytes, pack_bits, unpack_bits


@dataclass(frozen=True)
class Sign(Codec):
    """Signs and one scale, zero as positive: error at most the tensor's norm. Converges with error feedback."""

    def pack(self, values: Tensor, shape: tuple[int, ...], contexts: Sequence[Context]) -> Sequence[Tensor]:
        """Scale and signs."""
        if not values.shape[1]:
            return values.to(torch.uint8).unbind()
        return torch.cat([as_bytes(_mean_magnitude(values)), pack_bits(values >= 0)], 1).unbind()

    def unpack(self, packed: Sequence[Tensor], shape: tuple[int, ...], contexts: Sequence[Context]) -> Tensor:
        """Plus or minus the scale."""
        payload, count = torch.stack(list(packed)), math.prod(shape)
        if not count:
            return torch.zeros(len(payload), 0, device=payload.device)
        scale = as_values(payload[:, :4], torch.float32)
        return torch.where(unpack_bits(payload[:, 4:], count), scale, -scale)

    def packed_size(self, shape: tuple[int, ...]) -> int:
        """A bit a value and 4 bytes."""
        count = math.prod(shape)
        return 4 + bit_bytes(count) if count else 0


def _mean_magnitude(values: Tensor) -> Tensor:
    """Mean |x| of each row, float32 [n, 1]: pairs are added, then pairs of these, so the bits are the same anywhere."""
    count, total = values.shape[1], values.abs().to(torch.float64)
    while total.shape[1] > 1:
        total = functional.pad(total, (0, total.shape[1] % 2))
        total = total[:, 0::2] + total[:, 1::2]
    return (total / count).to(torch.float32)
