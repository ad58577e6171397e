"""Eight bits a value: integers from −127 to 127 times a scale (QSGD, Alistarh et al. 2017, with 127 levels).

The payload is the largest magnitude of each group of values in float32, then one byte a value.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from simfl.codecs.base import Codec, MessageContext, message_keys
from simfl.codecs.payload import as_bytes, as_values
from simfl.keyed_random import uniform

LEVELS = 127


@dataclass(frozen=True)
class Int8(Codec):
    """255 levels up to the largest magnitude: error at most 1/254 of it, or below 1/127 with stochastic rounding."""

    per: Literal["tensor", "channel"] = "tensor"  # values that share a scale; a channel is a row of the first axis
    rounding: Literal["nearest", "stochastic"] = "nearest"  # stochastic: up or down at random, unbiased

    def pack(self, values: Tensor, shape: tuple[int, ...], contexts: Sequence[MessageContext]) -> Sequence[Tensor]:
        """Return scales and levels. Stochastic rounding draws from the contexts' seeds."""
        n, count = values.shape
        groups = self._groups(values, shape)
        largest = _largest(groups)
        scaled = (groups / torch.where(largest > 0, largest, torch.ones_like(largest))[..., None]) * LEVELS
        if self.rounding == "nearest":
            codes = scaled.reshape(n, count).round()
        else:
            floor = scaled.reshape(n, count).floor()
            draws = uniform(message_keys(contexts, values.device), count)
            codes = floor + (draws < scaled.reshape(n, count) - floor)
        return torch.cat([as_bytes(largest), as_bytes(codes.to(torch.int8))], 1).unbind()

    def unpack(self, packed: Sequence[Tensor], shape: tuple[int, ...], contexts: Sequence[MessageContext]) -> Tensor:
        """Return levels over 127 times the largest magnitude."""
        payload, num_scales, count = torch.stack(list(packed)), self._num_scales(shape), math.prod(shape)
        largest = as_values(payload[:, : 4 * num_scales], torch.float32)
        codes = as_values(payload[:, 4 * num_scales :], torch.int8).to(torch.float32)
        # a GPU would turn the division by a plain number into a multiplication by 1/127, with other bits
        shares = codes / codes.new_full((1,), LEVELS)
        return (self._groups(shares, shape) * largest[..., None]).reshape(len(payload), count)

    def packed_size(self, shape: tuple[int, ...]) -> int:
        """Return a byte a value plus 4 bytes a scale."""
        return math.prod(shape) + 4 * self._num_scales(shape)

    def error_bound(self, values: Tensor, shape: tuple[int, ...], contexts: Sequence[MessageContext]) -> Tensor:
        """Return the norm of half a level per value, or of a whole one with stochastic rounding."""
        groups = self._groups(values, shape)
        level = _largest(groups)[..., None] / (2 * LEVELS if self.rounding == "nearest" else LEVELS)
        return level.expand(groups.shape).reshape(values.shape).norm(dim=1)

    def _groups(self, values: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Return values [n, count] by scale, [n, num_scales, count / num_scales]."""
        if not values.shape[1]:
            return values.reshape(len(values), 0, 1)
        return values.reshape(len(values), self._num_scales(shape), -1)

    def _num_scales(self, shape: tuple[int, ...]) -> int:
        if math.prod(shape) == 0:
            return 0
        return shape[0] if self.per == "channel" and len(shape) >= 2 else 1


def _largest(groups: Tensor) -> Tensor:
    return groups.abs().amax(2) if groups.numel() else groups.new_zeros(groups.shape[:2])
