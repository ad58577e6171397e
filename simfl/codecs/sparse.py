"""Sparse formats: the largest values (Aji and Heafield 2017) or random ones (Konečný et al. 2016); the rest is zero.

The payload is the positions of the values that are kept, then these values in float32 in ascending order of position.
Positions take the shorter of four bytes per kept value and one bit per value of the tensor; the shape decides which.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from simfl.codecs.base import Codec, MessageContext, message_keys
from simfl.codecs.payload import as_bytes, as_values, num_bit_bytes, pack_bits, unpack_bits
from simfl.constraints import Fraction
from simfl.errors import ConfigError
from simfl.keyed_random import random_bits


@dataclass(frozen=True)
class TopK(Codec):
    """The values of largest magnitude, the first of equal ones: error at most √(1 − keep) of the tensor's norm."""

    keep: Fraction = 0.1  # fraction of each tensor's values that is sent; at least one value

    def pack(self, values: Tensor, shape: tuple[int, ...], contexts: Sequence[MessageContext]) -> Sequence[Tensor]:
        """Return positions and values."""
        mask = largest(values.abs(), num_kept(values.shape[1], self.keep))
        return torch.cat([_pack_positions(mask), as_bytes(_picked(values, mask))], 1).unbind()

    def unpack(self, packed: Sequence[Tensor], shape: tuple[int, ...], contexts: Sequence[MessageContext]) -> Tensor:
        """Return the values at their positions, the rest zero."""
        payload, count = torch.stack(list(packed)), math.prod(shape)
        cut = _num_position_bytes(count, num_kept(count, self.keep))
        return _spread(payload[:, cut:], _unpack_positions(payload[:, :cut], count, num_kept(count, self.keep)))

    def packed_size(self, shape: tuple[int, ...]) -> int:
        """Return 4 bytes per kept value plus the positions."""
        count = math.prod(shape)
        kept = num_kept(count, self.keep)
        return 4 * kept + _num_position_bytes(count, kept)

    def error_bound(self, values: Tensor, shape: tuple[int, ...], contexts: Sequence[MessageContext]) -> Tensor:
        """Return √(1 − kept/count) of the tensor's norm."""
        count = max(1, values.shape[1])
        return (1 - num_kept(values.shape[1], self.keep) / count) ** 0.5 * values.norm(dim=1)


@dataclass(frozen=True)
class RandomK(Codec):
    """Values drawn at random, without replacement: error at most the tensor's norm."""

    keep: Fraction = 0.1  # fraction of each tensor's values that is sent; at least one value
    positions: Literal["seed", "sent"] = "seed"  # seed: both sides draw them, at no cost; sent: as topk sends them
    unbiased: bool = False  # multiply the values by count / kept, so that their expectation is the tensor

    def __post_init__(self) -> None:
        """Raise ConfigError for error feedback with unbiased values, whose error exceeds the tensor."""
        super().__post_init__()
        if self.unbiased and self.error_feedback:
            raise ConfigError(
                "codec.unbiased: true makes the error larger than the tensor, and error feedback accumulates it"
            )

    def pack(self, values: Tensor, shape: tuple[int, ...], contexts: Sequence[MessageContext]) -> Sequence[Tensor]:
        """Return the values, after their positions if these are sent."""
        mask = self._drawn(contexts, values.shape[1], values.device)
        positions = [_pack_positions(mask)] if self.positions == "sent" else []
        return torch.cat([*positions, as_bytes(_picked(values, mask))], 1).unbind()

    def unpack(self, packed: Sequence[Tensor], shape: tuple[int, ...], contexts: Sequence[MessageContext]) -> Tensor:
        """Return the values at their positions, the rest zero."""
        payload, count = torch.stack(list(packed)), math.prod(shape)
        kept = num_kept(count, self.keep)
        if self.positions == "sent":
            cut = _num_position_bytes(count, kept)
            mask, payload = _unpack_positions(payload[:, :cut], count, kept), payload[:, cut:]
        else:
            mask = self._drawn(contexts, count, payload.device)
        return _spread(payload, mask) * (count / kept if self.unbiased and kept else 1.0)

    def packed_size(self, shape: tuple[int, ...]) -> int:
        """Return 4 bytes per kept value, plus the positions if they are sent."""
        count = math.prod(shape)
        kept = num_kept(count, self.keep)
        return 4 * kept + (_num_position_bytes(count, kept) if self.positions == "sent" else 0)

    def error_bound(self, values: Tensor, shape: tuple[int, ...], contexts: Sequence[MessageContext]) -> Tensor:
        """Return the tensor's norm; with `unbiased` (count/kept − 1) times it, if that is more."""
        count, kept = values.shape[1], num_kept(values.shape[1], self.keep)
        factor = max(1.0, count / kept - 1) if self.unbiased and kept else 1.0
        return factor * values.norm(dim=1)

    def _drawn(self, contexts: Sequence[MessageContext], count: int, device: torch.device) -> Tensor:
        return largest(random_bits(message_keys(contexts, device), count), num_kept(count, self.keep))


def num_kept(count: int, keep: float) -> int:
    """Return how many of `count` values are sent."""
    return min(count, max(1, round(keep * count)))


def largest(scores: Tensor, kept: int) -> Tensor:
    """Return a mask of the `kept` largest scores of each row, bool [n, m]; the first of equal ones."""
    if kept == 0:
        return torch.zeros_like(scores, dtype=torch.bool)
    threshold = scores.topk(kept, 1).values[:, -1:]
    above, equal = scores > threshold, scores == threshold
    return above | (equal & (equal.cumsum(1) <= kept - above.sum(1, keepdim=True)))


def _picked(values: Tensor, mask: Tensor) -> Tensor:
    return values[mask].reshape(len(values), -1) if len(values) else values


def _spread(payload: Tensor, mask: Tensor) -> Tensor:
    values = torch.zeros(mask.shape, device=payload.device)
    values[mask] = as_values(payload, torch.float32).reshape(-1)
    return values


def _num_position_bytes(count: int, kept: int) -> int:
    return min(4 * kept, num_bit_bytes(count))


def _pack_positions(mask: Tensor) -> Tensor:
    kept = int(mask[0].sum())
    if 4 * kept >= num_bit_bytes(mask.shape[1]):
        return pack_bits(mask)
    return as_bytes(mask.nonzero()[:, 1].to(torch.int32).reshape(len(mask), kept))


def _unpack_positions(payload: Tensor, count: int, kept: int) -> Tensor:
    if 4 * kept >= num_bit_bytes(count):
        return unpack_bits(payload, count)
    positions = as_values(payload, torch.int32).to(torch.int64)
    return torch.zeros(len(payload), count, dtype=torch.bool, device=payload.device).scatter_(1, positions, True)
