"""Four bits a value at the quantiles of a normal distribution (Dettmers et al. 2023, QLoRA).

The payload is one float32 scale per block, including the tail block, then two values a byte, the first in the low bits.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from simfl.codecs.base import Codec, MessageContext
from simfl.codecs.payload import as_bytes, as_values
from simfl.constraints import PositiveInt
from simfl.errors import ConfigError

# QLoRA, appendix E, and the code of the PFL-DocVQA 2024 track-1 winner
LEVELS = (
    -1.0,
    -0.6961928009986877,
    -0.5250730514526367,
    -0.39491748809814453,
    -0.28444138169288635,
    -0.18477343022823334,
    -0.09105003625154495,
    0.0,
    0.07958029955625534,
    0.16093020141124725,
    0.24611230194568634,
    0.33791524171829224,
    0.44070982933044434,
    0.5626170039176941,
    0.7229568362236023,
    1.0,
)
WIDEST = max(high - low for low, high in itertools.pairwise(LEVELS))  # gap between levels
MIDPOINTS = tuple(float(np.float32((low + high) / 2)) for low, high in itertools.pairwise(LEVELS))


@dataclass(frozen=True)
class Nf4(Codec):
    """NormalFloat: 16 levels times the largest magnitude of each block; error at most 0.152 of that magnitude."""

    block: PositiveInt = 64  # values that share a scale

    def __post_init__(self) -> None:
        """Raise ConfigError for a block without values."""
        super().__post_init__()
        if self.block < 1:
            raise ConfigError(f"codec.block: {self.block} given; allowed: 1 and more")

    def pack(self, values: Tensor, shape: tuple[int, ...], contexts: Sequence[MessageContext]) -> Sequence[Tensor]:
        """Return scales and levels; a value halfway between two levels gets the lower one."""
        n, count = values.shape
        blocks = _pad(values, self.block).reshape(n, -1, self.block)
        scales = blocks.abs().amax(dim=2) if blocks.numel() else blocks.new_zeros(n, 0)
        scaled = blocks / torch.where(scales > 0, scales, torch.ones_like(scales))[..., None]
        codes = _nearest(scaled.reshape(n, -1)[:, :count])
        pairs = _pad(codes, 2).reshape(n, -1, 2)
        return torch.cat([as_bytes(scales), pairs[..., 0] | (pairs[..., 1] << 4)], 1).unbind()

    def unpack(self, packed: Sequence[Tensor], shape: tuple[int, ...], contexts: Sequence[MessageContext]) -> Tensor:
        """Return level times scale."""
        n, count, payload = len(packed), math.prod(shape), torch.stack(list(packed))
        cut = 4 * math.ceil(count / self.block)
        scales, pairs = as_values(payload[:, :cut], torch.float32), payload[:, cut:]
        levels = torch.tensor(LEVELS, device=payload.device)
        both = torch.stack([levels.repeat(16), levels.repeat_interleave(16)], dim=1)  # the two levels of each byte
        scaled = both.index_select(0, pairs.reshape(-1).to(torch.int32)).reshape(n, -1)[:, :count]
        values = _pad(scaled, self.block).reshape(n, -1, self.block) * scales[..., None]
        return values.reshape(n, -1)[:, :count]

    def packed_size(self, shape: tuple[int, ...]) -> int:
        """Return half a byte a value plus 4 bytes a block."""
        count = math.prod(shape)
        return 4 * math.ceil(count / self.block) + math.ceil(count / 2)

    def error_bound(self, values: Tensor, shape: tuple[int, ...], contexts: Sequence[MessageContext]) -> Tensor:
        """Return the norm of half the widest gap between levels, times the scale, of each value."""
        n, count = values.shape
        blocks = _pad(values, self.block).reshape(n, -1, self.block)
        scales = blocks.abs().amax(dim=2, keepdim=True) if blocks.numel() else blocks
        return (WIDEST / 2 * scales).expand(blocks.shape).reshape(n, -1)[:, :count].norm(dim=1)


def _nearest(scaled: Tensor) -> Tensor:
    """Return the code of the nearest level: the number of midpoints below. Five times as fast on a CPU as a search."""
    codes = torch.zeros(scaled.shape, dtype=torch.uint8, device=scaled.device)
    for midpoint in MIDPOINTS:
        codes += (scaled > midpoint).view(torch.uint8)
    return codes


def _pad(values: Tensor, multiple: int) -> Tensor:
    """Return values [n, m] padded with zeros to a multiple."""
    return torch.nn.functional.pad(values, (0, -values.shape[1] % multiple))
