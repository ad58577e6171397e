"""Float formats: every value is rounded to a float of 32, 16 or 8 bits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from simfl.codecs.base import Codec, MessageContext
from simfl.codecs.payload import as_bytes, as_values


@dataclass(frozen=True)
class Cast(Codec):
    """The base of codecs that cast to a float dtype, rounding to nearest."""

    dtype: ClassVar[torch.dtype]

    def pack(self, values: Tensor, shape: tuple[int, ...], contexts: Sequence[MessageContext]) -> Sequence[Tensor]:
        """Return the rounded values. Raises ValueError for a value beyond the dtype's range."""
        return as_bytes(self._round(values)).unbind()

    def unpack(self, packed: Sequence[Tensor], shape: tuple[int, ...], contexts: Sequence[MessageContext]) -> Tensor:
        """Return the rounded values as float32."""
        return as_values(torch.stack(list(packed)), self.dtype).to(torch.float32)

    def packed_size(self, shape: tuple[int, ...]) -> int:
        """Return the bytes of the dtype per value."""
        return self.dtype.itemsize * math.prod(shape)

    def error_bound(self, values: Tensor, shape: tuple[int, ...], contexts: Sequence[MessageContext]) -> Tensor:
        """Return the norm of half a unit in the last place of each value."""
        if self.lossless:
            return values.new_zeros(len(values))
        info = torch.finfo(self.dtype)
        return (0.5 * info.eps * values.abs().clamp_min(info.smallest_normal)).norm(dim=1)

    def _round(self, values: Tensor) -> Tensor:
        rounded, limit = values.to(self.dtype), torch.finfo(self.dtype).max
        if not self.lossless and not bool((rounded.to(torch.float32).abs() <= limit).all()):
            largest = float(values.abs().max())
            raise ValueError(f"the value {largest:.6g} is beyond {limit:.6g}, the largest {self.dtype} holds")
        return rounded


@dataclass(frozen=True)
class Float32(Cast):
    """Raw float32: 4 bytes a value, lossless."""

    dtype: ClassVar[torch.dtype] = torch.float32
    lossless: ClassVar[bool] = True


@dataclass(frozen=True)
class Float16(Cast):
    """IEEE half precision: relative error 2^-11 from 6.1e-5 up; refuses values beyond 65504."""

    dtype: ClassVar[torch.dtype] = torch.float16


@dataclass(frozen=True)
class BFloat16(Cast):
    """The upper half of a float32: relative error 2^-8, range of float32."""

    dtype: ClassVar[torch.dtype] = torch.bfloat16


@dataclass(frozen=True)
class Float8(Cast):
    """8-bit float E4M3 (Micikevicius et al. 2022): relative error 2^-4 from 2^-6 up; refuses values beyond 448."""

    dtype: ClassVar[torch.dtype] = torch.float8_e4m3fn
