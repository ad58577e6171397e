"""The base of all codecs: named tensors to bytes and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch import Tensor


@dataclass(frozen=True)
class Codec:
    """One wire format. Names, shapes and dtypes are a schema both sides know; everything else is paid for."""

    of: str = "delta"  # what is encoded: delta (the change since the received weights) | weights
    error_feedback: bool = False  # carry what the encoding lost into the client's next upload

    lossless: ClassVar[bool] = False  # decode(encode(x)) == x for float32; only its length need be known

    def encode(self, tensor: Tensor) -> np.ndarray:
        """A finite float tensor of any shape as a uint8 array; its length is what crosses the border."""
        raise NotImplementedError

    def decode(self, payload: np.ndarray, shape: tuple[int, ...]) -> Tensor:
        """The float32 tensor of this shape that the other side gets."""
        raise NotImplementedError

    def size(self, shape: tuple[int, ...]) -> int:
        """Length of the payload for a tensor of this shape, in bytes."""
        raise NotImplementedError
