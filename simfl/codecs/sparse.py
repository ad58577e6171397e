"""Few values, the rest zero: the largest ones (Aji and Heafield 2017), or some drawn by chance (Konečný et al. 2016).

The payload is where the values stand, then the values in float32 in the order of their places. Places cost the shorter
of four bytes for each value kept and one bit for each value of the tensor; both sides know which from the shape.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from simfl.codecs.base import Codec, Context, as_bytes, as_values
from simfl.codecs.bits import bit_bytes, pack_bits, unpack_bits
from simfl.codecs.chance import random_bits
from simfl.constraints import Fraction
from simfl.errors import ConfigError


@dataclass(frozen=True)
class TopK(Codec):
    """The values of largest magnitude; of equal ones the first. Error: at most √(1 − keep) of the tensor's norm."""

    keep: Fraction = 0.1  # share of each tensor's values that is sent; at least one of them

    def pack(self, values: Tensor, shape: tuple[int, ...], contexts: Sequence[Context]) -> Sequence[Tensor]:
        """Places and values."""
        mask = largest(values.abs(), num_kept(values.shape[1], self.keep))
        return torch.cat([_pack_places(mask), as_bytes(_picked(values, mask))], 1).unbind()

    def unpack(self, packed: Sequence[Tensor], shape: tuple[int, ...], contexts: Sequence[Context]) -> Tensor:
        """The values in their places, the rest zero."""
        payload, count = torch.stack(list(packed)), math.prod(shape)
        cut = _place_bytes(count, num_kept(count, self.keep))
        return _spread(payload[:, cut:], _unpack_places(payload[:, :cut], count, num_kept(count, self.keep)))

    def packed_size(self, shape: tuple[int, ...]) -> int:
        """4 bytes a value that is kept, and its place."""
        count = math.prod(shape)
        kept = num_kept(count, self.keep)
        return 4 * kept + _place_bytes(count, kept)


@dataclass(frozen=True)
class RandomK(Codec):
    """Values drawn without replacement. Their places follow from a seed both sides know, or are sent like top-k's."""

    keep: Fraction = 0.1  # share of each tensor's values that is sent; at least one of them
    places: Literal["seed", "paid"] = "seed"  # seed: cost nothing, as both sides draw them; paid: are sent
    unbiased: bool = False  # multiply what arrives by values / kept, so that it is right on average

    def __post_init__(self) -> None:
        """Refuses error feedback where what arrives may be further off than nothing."""
        super().__post_init__()
        if self.unbiased and self.error_feedback:
            raise ConfigError(
                "codec.unbiased: true makes the error larger than the tensor, and error feedback grows it"
            )

    def pack(self, values: Tensor, shape: tuple[int, ...], contexts: Sequence[Context]) -> Sequence[Tensor]:
        """Places, if they are paid for, and values."""
        mask = self._drawn(contexts, values.shape[1], values.device)
        places = [_pack_places(mask)] if self.places == "paid" else []
        return torch.cat([*places, as_bytes(_picked(values, mask))], 1).unbind()

    def unpack(self, packed: Sequence[Tensor], shape: tuple[int, ...], contexts: Sequence[Context]) -> Tensor:
        """The values in their places, the rest zero."""
        payload, count = torch.stack(list(packed)), math.prod(shape)
        kept = num_kept(count, self.keep)
        if self.places == "paid":
            cut = _place_bytes(count, kept)
            mask, payload = _unpack_places(payload[:, :cut], count, kept), payload[:, cut:]
        else:
            mask = self._drawn(contexts, count, payload.device)
        return _spread(payload, mask) * (count / kept if self.unbiased and kept else 1.0)

    def packed_size(self, shape: tuple[int, ...]) -> int:
        """4 bytes a value that is kept, and its place if that is paid for."""
        count = math.prod(shape)
        kept = num_kept(count, self.keep)
        return 4 * kept + (_place_bytes(count, kept) if self.places == "paid" else 0)

    def _drawn(self, contexts: Sequence[Context], count: int, device: torch.device) -> Tensor:
        return largest(random_bits(contexts, count, device), num_kept(count, self.keep))


def num_kept(count: int, keep: float) -> int:
    """How many of `count` values are sent."""
    return min(count, max(1, round(keep * count)))


def largest(scores: Tensor, kept: int) -> Tensor:
    """Where the `kept` largest of each row of scores [n, m] stand, bool [n, m]; of equal ones the first."""
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


def _place_bytes(count: int, kept: int) -> int:
    return min(4 * kept, bit_bytes(count))


def _pack_places(mask: Tensor) -> Tensor:
    kept = int(mask[0].sum())
    if 4 * kept >= bit_bytes(mask.shape[1]):
        return pack_bits(mask)
    return as_bytes(mask.nonzero()[:, 1].to(torch.int32).reshape(len(mask), kept))


def _unpack_places(payload: Tensor, count: int, kept: int) -> Tensor:
    if 4 * kept >= bit_bytes(count):
        return unpack_bits(payload, count)
    places = as_values(payload, torch.int32).to(torch.int64)
    return torch.zeros(len(payload), count, dtype=torch.bool, device=payload.device).scatter_(1, places, True)
