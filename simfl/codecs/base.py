"""The base class of all codecs: wire formats that turn tensors into bytes and back.

To write a codec, subclass `Codec` and override `pack`, `unpack`, `packed_size` and `error_bound`.
`simfl.contract.check(MyCodec)` tests it.

A codec is a pure function of the values and of a `MessageContext` that sender and receiver know. A client update that
is repeated, after a failure or a resume, therefore sends the same bytes; and the bytes of stacked clients are those of
each client alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from simfl.codecs.payload import HEADER, compress, decompress
from simfl.errors import ConfigError, nearest
from simfl.seeds import SeedName, seed_for
from simfl.weights import from_raw_bytes, to_raw_bytes

ENCODE = ("update", "weights")  # allowed values of `encode`


@dataclass(frozen=True)
class MessageContext:
    """The place of a tensor in a run. Sender and receiver both know it, so it costs no bytes."""

    names: tuple[SeedName, ...] = ()  # run seed, phase, round, direction, client, part, tensor: seed of random draws
    progress: float = 0.0  # of the phase: 0 in its first round, 1 in its last

    @cached_property
    def seed(self) -> int:
        """Return 63 random bits for this tensor of this message."""
        return seed_for("codec", *self.names)

    def child(self, name: SeedName) -> MessageContext:
        """Return the context with one more name."""
        return MessageContext((*self.names, name), self.progress)


@dataclass(frozen=True)
class Codec:
    """One wire format. Names, shapes, dtypes and contexts are known to both sides; everything else costs bytes.

    Attributes:
        lossless: Whether decode(encode(x)) == x for float32.
        variable_size: Whether the length depends on the values. `packed_size` is then the maximum.
        idempotent: Whether encoding a decoded tensor again loses nothing more.
        example: Settings for `simfl.contract.check`.
    """

    encode: str = "update"  # what is encoded: update (the change since the received weights) | weights
    error_feedback: bool = False  # add the encoding error of an upload to the client's next upload
    compress: Literal["none", "zstd", "lz4"] = "none"  # lossless compression of the bytes of each tensor

    lossless: ClassVar[bool] = False
    variable_size: ClassVar[bool] = False
    idempotent: ClassVar[bool] = True
    example: ClassVar[Mapping[str, object]] = {}

    def __post_init__(self) -> None:
        """Raise ConfigError for a setting that is unknown or has no effect."""
        if self.encode not in ENCODE:
            raise ConfigError(f"codec.encode: unknown {self.encode!r}; {nearest(self.encode, ENCODE)}")
        if self.lossless and self.error_feedback:
            raise ConfigError(f"codec.error_feedback: {type(self).__name__} is lossless; allowed: false")

    def pack(self, values: Tensor, shape: tuple[int, ...], contexts: Sequence[MessageContext]) -> Sequence[Tensor]:
        """Encode n tensors of one shape.

        Args:
            values: Their finite float32 values [n, m], m the product of `shape`.
            shape: The shape of each tensor.
            contexts: The context of each tensor.

        Returns:
            One byte string per tensor, uint8 [bytes], on the device of `values`.

        Raises:
            ValueError: The format cannot represent a value.
        """
        raise NotImplementedError

    def unpack(self, packed: Sequence[Tensor], shape: tuple[int, ...], contexts: Sequence[MessageContext]) -> Tensor:
        """Decode n byte strings of `pack` to float32 values [n, m], on their device, in memory of their own."""
        raise NotImplementedError

    def packed_size(self, shape: tuple[int, ...]) -> int:
        """Return the length in bytes of one byte string of `pack`; the maximum if `variable_size`."""
        raise NotImplementedError

    def error_bound(self, values: Tensor, shape: tuple[int, ...], contexts: Sequence[MessageContext]) -> Tensor:
        """Return an upper bound of the Euclidean norm of decoded minus given values, float32 [n].

        Takes the arguments of `pack`. `simfl.contract.check` compares it with measured errors.
        """
        raise NotImplementedError

    @property
    def fixed_size(self) -> bool:
        """Return whether the length of a payload follows from the shape alone."""
        return not self.variable_size and self.compress == "none"

    @property
    def broadcasts_deltas(self) -> bool:
        """Return whether downloads are deltas to the version that clients have, rather than whole weights."""
        return self.encode == "update" and not self.lossless

    def size(self, shape: tuple[int, ...]) -> int:
        """Return the length in bytes of the payload of a tensor; the maximum unless `fixed_size`."""
        return self.packed_size(shape) + (HEADER if self.compress != "none" else 0)

    def encode_stacked(self, stacked: Tensor, contexts: Sequence[MessageContext]) -> list[Tensor]:
        """Encode float tensors [n, *shape] to n payloads, uint8 [bytes], on their device unless compressed.

        Raises ValueError for NaN, infinity, and a value that the format cannot represent.
        """
        values = stacked.detach().reshape(len(stacked), math.prod(stacked.shape[1:])).to(torch.float32)
        if not bool(torch.isfinite(values).all()):
            bad = int((~torch.isfinite(values)).sum())
            raise ValueError(f"{bad} of {values.numel()} values are NaN or infinite in float32")
        packed = self.pack(values, tuple(stacked.shape[1:]), contexts)
        return list(packed) if self.compress == "none" else [compress(one, self.compress) for one in packed]

    def decode_stacked(
        self, payloads: Sequence[Tensor], shape: tuple[int, ...], contexts: Sequence[MessageContext]
    ) -> Tensor:
        """Decode n payloads to float32 tensors [n, *shape], on the payloads' device."""
        packed = payloads if self.compress == "none" else [decompress(one, self.compress) for one in payloads]
        return self.unpack(packed, shape, contexts).reshape(len(payloads), *shape)

    def encode_tensor(self, tensor: Tensor, context: MessageContext = MessageContext()) -> np.ndarray:
        """Encode one finite float tensor of any shape to a payload, uint8 [bytes]."""
        return to_raw_bytes(self.encode_stacked(tensor[None], [context])[0])

    def decode_tensor(
        self, payload: np.ndarray, shape: tuple[int, ...], context: MessageContext = MessageContext()
    ) -> Tensor:
        """Decode one payload to a float32 tensor of this shape, on the CPU."""
        received = from_raw_bytes(payload, torch.uint8, (len(payload),))
        return self.decode_stacked([received], shape, [context])[0]


def message_keys(contexts: Sequence[MessageContext], device: torch.device) -> Tensor:
    """Return the keys of `simfl.keyed_random` for these messages, int64 [n]."""
    return torch.tensor([context.seed for context in contexts], dtype=torch.int64, device=device)
