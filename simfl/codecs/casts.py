"""Half the bytes: every value rounded to a 16-bit float."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from simfl.codecs.base import Codec, flat_float32, from_bytes
from simfl.weights import raw_bytes


@dataclass(frozen=True)
class Float16(Codec):
    """IEEE half precision, rounded to nearest: relative error 2^-11 from 6.1e-5 up, values beyond 65504 refused."""

    dtype: ClassVar[torch.dtype] = torch.float16

    def encode(self, tensor: Tensor) -> np.ndarray:
        """The rounded values; ValueError for a value out of range, which saturation would hide."""
        return raw_bytes(_cast(tensor, self.dtype))

    def decode(self, payload: np.ndarray, shape: tuple[int, ...]) -> Tensor:
        """The rounded values as float32."""
        return from_bytes(payload, self.dtype).to(torch.float32).reshape(shape)

    def size(self, shape: tuple[int, ...]) -> int:
        """2 bytes a value."""
        return 2 * math.prod(shape)


@dataclass(frozen=True)
class BFloat16(Codec):
    """The upper half of a float32, rounded to nearest: relative error 2^-8, range of float32."""

    dtype: ClassVar[torch.dtype] = torch.bfloat16

    def encode(self, tensor: Tensor) -> np.ndarray:
        """The rounded values; ValueError for a value that rounds to infinity (beyond 3.39e38)."""
        return raw_bytes(_cast(tensor, self.dtype))

    def decode(self, payload: np.ndarray, shape: tuple[int, ...]) -> Tensor:
        """The rounded values as float32."""
        return from_bytes(payload, self.dtype).to(torch.float32).reshape(shape)

    def size(self, shape: tuple[int, ...]) -> int:
        """2 bytes a value."""
        return 2 * math.prod(shape)


def _cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    values = flat_float32(tensor)
    rounded = values.to(dtype)
    if not bool(torch.isfinite(rounded).all()):
        limit = torch.finfo(dtype).max
        raise ValueError(f"the value {float(values.abs().max()):.6g} is beyond {limit:.6g}, the largest {dtype} holds")
    return rounded
