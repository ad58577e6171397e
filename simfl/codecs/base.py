"""The base of all codecs: tensors to bytes and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from simfl.errors import ConfigError, nearest

OF = ("delta", "weights")


@dataclass(frozen=True)
class Codec:
    """One wire format. Names, shapes and dtypes are a schema both sides know; everything else is paid for."""

    of: str = "delta"  # what is encoded: delta (the change since the received weights) | weights
    error_feedback: bool = False  # carry what the encoding lost into the client's next upload

    lossless: ClassVar[bool] = False  # decode(encode(x)) == x for float32; only its length need be known

    def __post_init__(self) -> None:
        """Refuses a setting that is unknown or would have no effect."""
        if self.of not in OF:
            raise ConfigError(f"codec.of: unknown {self.of!r}; {nearest(self.of, OF)}")
        if self.lossless and self.error_feedback:
            raise ConfigError(f"codec.error_feedback: {type(self).__name__} loses nothing; allowed: false")

    def encode(self, tensor: Tensor) -> np.ndarray:
        """A finite float tensor of any shape as a uint8 array [bytes], the length of which crosses the border.

        Raises ValueError for NaN, infinity, and a value that the format cannot hold.
        """
        raise NotImplementedError

    def decode(self, payload: np.ndarray, shape: tuple[int, ...]) -> Tensor:
        """The float32 tensor of this shape, on the CPU, that the other side gets."""
        raise NotImplementedError

    def size(self, shape: tuple[int, ...]) -> int:
        """Length of the payload for a tensor of this shape, in bytes."""
        raise NotImplementedError


def flat_float32(tensor: Tensor) -> Tensor:
    """All values as float32 [n], on the tensor's own device; ValueError if one of them is not finite."""
    values = tensor.detach().reshape(-1).to(torch.float32)
    if not bool(torch.isfinite(values).all()):
        bad = int((~torch.isfinite(values)).sum())
        raise ValueError(f"{bad} of {values.numel()} values are NaN or infinite in float32")
    return values


def from_bytes(payload: np.ndarray, dtype: torch.dtype) -> Tensor:
    """The values [n] of this dtype whose `raw_bytes` these are, in memory of their own."""
    values = torch.empty(len(payload) // dtype.itemsize, dtype=dtype)
    values.view(torch.uint8).numpy()[:] = payload
    return values
