"""Eight bits a value: whole numbers from −127 to 127 times a scale (QSGD, Alistarh et al. 2017, with 127 levels).

The payload is the largest magnitude of each group of values in float32, then one byte a value.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from simfl.codecs.base import Codec, Context, as_bytes, as_values
from simfl.codecs.chance import uniform

LEVELS = 127


@dataclass(frozen=True)
class Int8(Codec):
    """255 levels up to the largest magnitude: error at most 1/254 of it, or below 1/127 with stochastic rounding."""

    per: Literal["tensor", "channel"] = "tensor"  # what shares a scale; a channel is a row of the first axis
    rounding: Literal["nearest", "stochastic"] = "nearest"  # stochastic: up or down at random, right on average

    def pack(self, values: Tensor, shape: tuple[int, ...], contexts: Sequence[Context]) -> Sequence[Tensor]:
        """Quantised on the values' device; chance is named by the context."""
        n, count = values.shape
        groups = values.reshape(n, self._scales(shape), -1) if count else values.reshape(n, 0, 1)
        largest = groups.abs().amax(2) if count else groups.new_zeros(n, 0)
        scaled = (groups / torch.where(largest > 0, largest, torch.ones_like(largest))[..., None]) * LEVELS
        if self.rounding == "nearest":
            codes = scaled.reshape(n, count).round()
        else:
            floor = scaled.reshape(n, count).floor()
            codes = floor + (uniform(contexts, count, values.device) < scaled.reshape(n, count) - floor)
        return torch.cat([as_bytes(largest), as_bytes(codes.to(torch.int8))], 1).unbind()

    def unpack(self, packed: Sequence[Tensor], shape: tuple[int, ...], contexts: Sequence[Context]) -> Tensor:
        """Levels over 127 times the largest magnitude."""
        payload, scales, count = torch.stack(list(packed)), self._scales(shape), math.prod(shape)
        largest = as_values(payload[:, : 4 * scales], torch.float32)
        codes = as_values(payload[:, 4 * scales :], torch.int8).to(torch.float32)
        shares = codes / codes.new_full((1,), LEVELS)  # by a number alone a GPU would take 1/127 times it, other bits
        groups = shares.reshape(len(payload), scales, -1) if count else shares.reshape(len(payload), 0, 1)
        return (groups * largest[..., None]).reshape(len(payload), count)

    def packed_size(self, shape: tuple[int, ...]) -> int:
        """A byte a value, 4 bytes a scale."""
        return math.prod(shape) + 4 * self._scales(shape)

    def _scales(self, shape: tuple[int, ...]) -> int:
        if math.prod(shape) == 0:
            return 0
        return shape[0] if self.per == "channel" and len(shape) >= 2 else 1
