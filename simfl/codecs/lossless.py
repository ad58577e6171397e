"""The last stage: bytes to fewer bytes, by a general compressor that loses nothing.

A payload is a header of four bytes and a body. The header is the length of what was compressed, or 0 for a body that is
not compressed, as it would not have become shorter.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

HEADER = 4  # bytes
LEVELS: dict[str, int | None] = {"zstd": 3, "lz4": None}  # lz4 has one of its own


def squeezed(raw: Tensor, name: str) -> Tensor:
    """The payload, on the CPU, of these bytes."""
    plain = raw.cpu().numpy()
    body = np.frombuffer(_compressor(name).compress(plain.tobytes(), asbytes=True), np.uint8) if len(plain) else plain
    length = len(plain) if len(body) < len(plain) < 2**32 else 0
    header = np.array([length], "<u4").view(np.uint8)
    return torch.from_numpy(np.concatenate([header, body if length else plain]))


def unsqueezed(payload: Tensor, name: str) -> Tensor:
    """The bytes of a payload, on the CPU."""
    whole = payload.cpu().numpy()
    (length,), body = whole[:HEADER].view("<u4"), whole[HEADER:]
    if length == 0:
        return torch.from_numpy(body.copy())
    plain = _compressor(name).decompress(body.tobytes(), decompressed_size=int(length), asbytes=True)
    return torch.from_numpy(np.frombuffer(plain, np.uint8).copy())


def _compressor(name: str) -> pa.Codec:
    return pa.Codec(name, compression_level=LEVELS[name])
