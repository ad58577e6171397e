"""Every value as it is."""

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
class Float32(Codec):
    """Raw float32: 4 bytes a value, nothing lost."""

    lossless: ClassVar[bool] = True

    def encode(self, tensor: Tensor) -> np.ndarray:
        """The raw values; ValueError if one is not finite."""
        return raw_bytes(flat_float32(tensor))

    def decode(self, payload: np.ndarray, shape: tuple[int, ...]) -> Tensor:
        """The values, bit for bit."""
        return from_bytes(payload, torch.float32).reshape(shape)

    def size(self, shape: tuple[int, ...]) -> int:
        """4 bytes a value."""
        return 4 * math.prod(shape)
