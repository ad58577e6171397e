"""Bytes of a payload: tensors as bytes, one bit a value, and lossless compression.

A compressed payload is a header of four bytes and a body. The header is the length of the bytes that were compressed,
or 0 for a body that is not compressed because that would not make it shorter.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor
from torch.nn import functional

HEADER = 4  # bytes
LEVELS: dict[str, int | None] = {"zstd": 3, "lz4": None}  # None: the compressor's default


def as_bytes(values: Tensor) -> Tensor:
    """Return a copy of values [n, k] of any dtype as bytes [n, k·itemsize]."""
    return _dense(values).view(torch.uint8).reshape(len(values), values.shape[1] * values.dtype.itemsize)


def as_values(payload: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a copy of bytes [n, k·itemsize] as values [n, k] of this dtype; the inverse of `as_bytes`."""
    return _dense(payload).view(dtype).reshape(len(payload), payload.shape[1] // dtype.itemsize)


def _dense(values: Tensor) -> Tensor:
    """Return a contiguous copy, which can be viewed as another dtype whatever the strides of `values`."""
    return torch.empty(values.numel(), dtype=values.dtype, device=values.device).copy_(values.reshape(-1))


def num_bit_bytes(count: int) -> int:
    """Return the number of bytes that hold `count` bits."""
    return -(-count // 8)


def pack_bits(bits: Tensor) -> Tensor:
    """Pack booleans [n, m] into bytes [n, ⌈m/8⌉], the first in the lowest bit."""
    padded = functional.pad(bits.to(torch.uint8), (0, -bits.shape[1] % 8)).reshape(len(bits), -1, 8)
    return (padded << _shifts(bits.device)).sum(2, dtype=torch.uint8)


def unpack_bits(payload: Tensor, count: int) -> Tensor:
    """Unpack booleans [n, count] from bytes [n, ⌈count/8⌉]."""
    bits = (payload[..., None] >> _shifts(payload.device)) & 1
    return bits.reshape(len(payload), 8 * payload.shape[1])[:, :count].bool()


def _shifts(device: torch.device) -> Tensor:
    return torch.arange(8, dtype=torch.uint8, device=device)


def compress(raw: Tensor, name: str) -> Tensor:
    """Return the compressed payload of these bytes, on the CPU; `name` is zstd or lz4."""
    plain = raw.cpu().numpy()
    body = np.frombuffer(_compressor(name).compress(plain.tobytes(), asbytes=True), np.uint8) if len(plain) else plain
    length = len(plain) if len(body) < len(plain) < 2**32 else 0
    header = np.array([length], "<u4").view(np.uint8)
    return torch.from_numpy(np.concatenate([header, body if length else plain]))


def decompress(payload: Tensor, name: str) -> Tensor:
    """Return the bytes of a compressed payload, on the CPU."""
    whole = payload.cpu().numpy()
    (length,), body = whole[:HEADER].view("<u4"), whole[HEADER:]
    if length == 0:
        return torch.from_numpy(body.copy())
    plain = _compressor(name).decompress(body.tobytes(), decompressed_size=int(length), asbytes=True)
    return torch.from_numpy(np.frombuffer(plain, np.uint8).copy())


def _compressor(name: str) -> pa.Codec:
    return pa.Codec(name, compression_level=LEVELS[name])
