"""One bit a value: eight truths in a byte, the first in the lowest bit."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def bit_bytes(count: int) -> int:
    """Bytes that hold this many bits."""
    return -(-count // 8)


def pack_bits(truths: Tensor) -> Tensor:
    """Truths [n, m] as bytes [n, ⌈m/8⌉]."""
    padded = functional.pad(truths.to(torch.uint8), (0, -truths.shape[1] % 8)).reshape(len(truths), -1, 8)
    return (padded << _places(truths.device)).sum(2, dtype=torch.uint8)


def unpack_bits(payload: Tensor, count: int) -> Tensor:
    """Truths [n, count] of bytes [n, ⌈count/8⌉]."""
    bits = (payload[..., None] >> _places(payload.device)) & 1
    return bits.reshape(len(payload), 8 * payload.shape[1])[:, :count].bool()


def _places(device: torch.device) -> Tensor:
    return torch.arange(8, dtype=torch.uint8, device=device)
