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

from simfl.codecs.base import Codec, MessageContext
from simfl.codecs.payload import as_bytes, as_values, num_bit_bytes, pack_bits, unpack_bits


@dataclass(frozen=True)
class Sign(Codec):
    """Signs and one scale, zero as positive: error at most the tensor's norm. Converges with error feedback."""

    def pack(self, values: Tensor, shape: tuple[int, ...], contexts: Sequence[MessageContext]) -> Sequence[Tensor]:
        """Return scale and signs."""
        if not values.shape[1]:
            return values.to(torch.uint8).unbind()
        return torch.cat([as_bytes(_mean_magnitude(values)), pack_bits(values >= 0)], 1).unbind()

    def unpack(self, packed: Sequence[Tensor], shape: tuple[int, ...], contexts: Sequence[MessageContext]) -> Tensor:
        """Return plus or minus the scale."""
        payload, count = torch.stack(list(packed)), math.prod(shape)
        if not count:
            return torch.zeros(len(payload), 0, device=payload.device)
        scale = as_values(payload[:, :4], torch.float32)
        return torch.where(unpack_bits(payload[:, 4:], count), scale, -scale)

    def packed_size(self, shape: tuple[int, ...]) -> int:
        """Return a bit a value plus 4 bytes."""
        count = math.prod(shape)
        return 4 + num_bit_bytes(count) if count else 0

    def error_bound(self, values: Tensor, shape: tuple[int, ...], contexts: Sequence[MessageContext]) -> Tensor:
        """Return the tensor's norm."""
        return values.norm(dim=1)


def _mean_magnitude(values: Tensor) -> Tensor:
    """Return the mean |x| of each row, float32 [n, 1].

    Pairs are added, then pairs of these, so that the bits are the same on every device.
    """
    count, total = values.shape[1], values.abs().to(torch.float64)
    while total.shape[1] > 1:
        total = functional.pad(total, (0, total.shape[1] % 2))
        total = total[:, 0::2] + total[:, 1::2]
    return (total / count).to(torch.float32)
