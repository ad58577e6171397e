"""Every value as it is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from simfl.codecs.base import Codec, Context, as_bytes, as_values


@dataclass(frozen=True)
class Float32(Codec):
    """Raw float32: 4 bytes a value, nothing lost."""

    lossless: ClassVar[bool] = True

    def pack(self, values: Tensor, shape: tuple[int, ...], contexts: Sequence[Context]) -> Sequence[Tensor]:
        """The raw values."""
        return as_bytes(values).unbind()

    def unpack(self, packed: Sequence[Tensor], shape: tuple[int, ...], contexts: Sequence[Context]) -> Tensor:
        """The values, bit for bit."""
        return as_values(torch.stack(list(packed)), torch.float32)

    def packed_size(self, shape: tuple[int, ...]) -> int:
        """4 bytes a value."""
        return 4 * math.prod(shape)
