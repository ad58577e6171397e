"""The base of all codecs: tensors to bytes and back, for one client or for a whole cohort in one call.

A codec is a pure function of the values and of a `Context` that both sides know, so a visit that is tried again, or run
again after a resume, sends the same bytes; and the bytes of a cohort are those of its clients one by one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from simfl.codecs.lossless import HEADER, squeezed, unsqueezed
from simfl.errors import ConfigError, nearest
from simfl.seeds import Name, seed_for
from simfl.weights import from_raw_bytes, raw_bytes

ENCODE = ("update", "weights")  # choices of `encode`


@dataclass(frozen=True)
class Context:
    """Where in a run a tensor is sent. Both sides know it, so it costs nothing."""

    names: tuple[Name, ...] = ()  # run seed, phase, round, direction, client, part, tensor: what chance depends on
    progress: float = 0.0  # of the phase: 0 in its first round, 1 in its last

    @cached_property
    def seed(self) -> int:
        """63 random bits of this tensor in this message."""
        return seed_for("codec", *self.names)

    def of(self, name: Name) -> Context:
        """The same, one name further."""
        return Context((*self.names, name), self.progress)


@dataclass(frozen=True)
class Codec:
    """One wire format. Names, shapes, dtypes and contexts are a schema both sides know; everything else is paid for.

    A wire format gives `pack`, `unpack` and `packed_size`.
    """

    encode: str = "update"  # what is encoded: update (the change since the received weights) | weights
    error_feedback: bool = False  # carry what the encoding lost into the client's next upload
    compress: Literal["none", "zstd", "lz4"] = "none"  # a last stage over the bytes of each tensor, which loses nothing

    lossless: ClassVar[bool] = False  # decode(encode(x)) == x for float32
    varies: ClassVar[bool] = False  # the length depends on the values; `packed_size` is the most it can be

    def __post_init__(self) -> None:
        """Refuses a setting that is unknown or would have no effect."""
        if self.encode not in ENCODE:
            raise ConfigError(f"codec.encode: unknown {self.encode!r}; {nearest(self.encode, ENCODE)}")
        if self.lossless and self.error_feedback:
            raise ConfigError(f"codec.error_feedback: {type(self).__name__} loses nothing; allowed: false")

    def pack(self, values: Tensor, shape: tuple[int, ...], contexts: Sequence[Context]) -> Sequence[Tensor]:
        """n tensors of this shape, given as finite float32 `values` [n, m], as n byte strings, uint8 on their device.

        Raises ValueError for a value that the format cannot hold.
        """
        raise NotImplementedError

    def unpack(self, packed: Sequence[Tensor], shape: tuple[int, ...], contexts: Sequence[Context]) -> Tensor:
        """The float32 values [n, m] that the other side gets, in memory of their own on the bytes' device."""
        raise NotImplementedError

    def packed_size(self, shape: tuple[int, ...]) -> int:
        """Length of one byte string in bytes, before the last stage; the most it can be where it varies."""
        raise NotImplementedError

    @property
    def fixed(self) -> bool:
        """Whether a shape alone tells the length of a payload."""
        return not self.varies and self.compress == "none"

    @property
    def sends_changes(self) -> bool:
        """Whether the server sends its change since the last version that clients have, not the whole."""
        return self.encode == "update" and not self.lossless

    def size(self, shape: tuple[int, ...]) -> int:
        """Length of the payload for a tensor of this shape, in bytes; the most it can be unless it is `fixed`."""
        return self.packed_size(shape) + (HEADER if self.compress != "none" else 0)

    def encode_all(self, stacked: Tensor, contexts: Sequence[Context]) -> list[Tensor]:
        """Float tensors [n, *shape] as n payloads, uint8 [bytes], which stay on their device without a last stage.

        Raises ValueError for NaN, infinity, and a value that the format cannot hold.
        """
        values = stacked.detach().reshape(len(stacked), math.prod(stacked.shape[1:])).to(torch.float32)
        if not bool(torch.isfinite(values).all()):
            bad = int((~torch.isfinite(values)).sum())
            raise ValueError(f"{bad} of {values.numel()} values are NaN or infinite in float32")
        packed = self.pack(values, tuple(stacked.shape[1:]), contexts)
        return list(packed) if self.compress == "none" else [squeezed(one, self.compress) for one in packed]

    def decode_all(self, payloads: Sequence[Tensor], shape: tuple[int, ...], contexts: Sequence[Context]) -> Tensor:
        """The float32 tensors [n, *shape] that the other side gets, on the payloads' device."""
        packed = payloads if self.compress == "none" else [unsqueezed(one, self.compress) for one in payloads]
        return self.unpack(packed, shape, contexts).reshape(len(payloads), *shape)

    def encode_tensor(self, tensor: Tensor, context: Context = Context()) -> np.ndarray:
        """One finite float tensor of any shape as a uint8 array [bytes], the length of which crosses the border."""
        return raw_bytes(self.encode_all(tensor[None], [context])[0])

    def decode_tensor(self, payload: np.ndarray, shape: tuple[int, ...], context: Context = Context()) -> Tensor:
        """The float32 tensor of this shape, on the CPU, that the other side gets."""
        received = from_raw_bytes(payload, torch.uint8, (len(payload),))
        return self.decode_all([received], shape, [context])[0]


def as_bytes(values: Tensor) -> Tensor:
    """The bytes [n, bytes] of values [n, k] of any dtype, in memory of their own."""
    return _dense(values).view(torch.uint8).reshape(len(values), values.shape[1] * values.dtype.itemsize)


def as_values(payload: Tensor, dtype: torch.dtype) -> Tensor:
    """The values [n, k] of this dtype whose `as_bytes` these are, in memory of their own."""
    return _dense(payload).view(dtype).reshape(len(payload), payload.shape[1] // dtype.itemsize)


def _dense(values: Tensor) -> Tensor:
    """A copy in one row: only that may be seen as another dtype, whatever its length and place in memory were."""
    return torch.empty(values.numel(), dtype=values.dtype, device=values.device).copy_(values.reshape(-1))
