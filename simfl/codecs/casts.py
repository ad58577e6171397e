"""Half the bytes: every value rounded to a 16-bit float."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from simfl.codecs.base import Codec, Context, as_bytes, as_values


@dataclass(frozen=True)
class Float16(Codec):
    """IEEE half precision, rounded to nearest: relative error 2^-11 from 6.1e-5 up, values beyond 65504 refused."""

    dtype: ClassVar[torch.dtype] = torch.float16

    def pack(self, values: Tensor, shape: tuple[int, ...], contexts: Sequence[Context]) -> Sequence[Tensor]:
        """The rounded values; ValueError for a value out of range, which saturation would hide."""
        return as_bytes(_cast(values, self.dtype)).unbind()

    def unpack(self, packed: Sequence[Tensor], shape: tuple[int, ...], contexts: Sequence[Context]) -> Tensor:
        """The rounded values as float32."""
        return as_values(torch.stack(list(packed)), self.dtype).to(torch.float32)

    def packed_size(self, shape: tuple[int, ...]) -> int:
        """2 bytes a value."""
        return 2 * math.prod(shape)


@dataclass(frozen=True)
class BFloat16(Codec):
    """The upper half of a float32, rounded to nearest: relative error 2^-8, range of float32."""

    dtype: ClassVar[torch.dtype] = torch.bfloat16

    def pack(self, values: Tensor, shape: tuple[int, ...], contexts: Sequence[Context]) -> Sequence[Tensor]:
        """The rounded values; ValueError for a value that rounds to infinity (beyond 3.39e38)."""
        return as_bytes(_cast(values, self.dtype)).unbind()

    def unpack(self, packed: Sequence[Tensor], shape: tuple[int, ...], contexts: Sequence[Context]) -> Tensor:
        """The rounded values as float32."""
        return as_values(torch.stack(list(packed)), self.dtype).to(torch.float32)

    def packed_size(self, shape: tuple[int, ...]) -> int:
        """2 bytes a value."""
        return 2 * math.prod(shape)


def _cast(values: Tensor, dtype: torch.dtype) -> Tensor:
    rounded = values.to(dtype)
    if not bool(torch.isfinite(rounded).all()):
        limit = torch.finfo(dtype).max
        raise ValueError(f"the value {float(values.abs().max()):.6g} is beyond {limit:.6g}, the largest {dtype} holds")
    return rounded
