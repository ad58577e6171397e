"""Random bits on tensors as a hash of keys and places: no generator, so the same in every way of training.

The hash is Wellons' 32-bit finaliser 'lowbias32', two rounds of xor, shift and multiply, keyed between its halves.
int32 arithmetic wraps, as it has to; only its shifts are arithmetic, and are made logical by a mask.
"""

from __future__ import annotations

import torch
from torch import Tensor

BITS = 24  # of a random number: what the mantissa of a float32 holds
STEP = 0x5851F42D4C957F2D  # odd: keys of different local steps stay apart
SPREAD = 0x3C6EF35F  # odd: keys that are close lie far apart among the places
FIRST, SECOND = 0x7FEB352D, 0x846CA68B - (1 << 32)  # what lowbias32 multiplies by, as signed numbers


def random_bits(keys: Tensor, count: int) -> Tensor:
    """Whole numbers in [0, 2^24), int32 [*keys.shape, count], equal on every device; `keys` is int64."""
    low, high = words(keys)
    x = torch.arange(count, dtype=torch.int32, device=keys.device) ^ (low * SPREAD)[..., None]
    for word in (high, low):
        x = second(first(x), word[..., None])
    return (last(x) >> 8) & ((1 << BITS) - 1)


def uniform(keys: Tensor, count: int) -> Tensor:
    """Numbers in [0, 1), float32 [*keys.shape, count]."""
    return random_bits(keys, count).to(torch.float32) / (1 << BITS)


def words(keys: Tensor) -> tuple[Tensor, Tensor]:
    """The low and the high half of int64 keys, int32."""
    return (keys & 0xFFFFFFFF).to(torch.int32), (keys >> 32).to(torch.int32)


def first(x: Tensor) -> Tensor:
    """The first half of lowbias32 over int32; without keys the whole is last(second(first(x)))."""
    return (x ^ shifted(x, 16)) * FIRST


def second(x: Tensor, key: Tensor | None = None) -> Tensor:
    """Its second half, with a key before it multiplies."""
    mixed = x ^ shifted(x, 15)
    return (mixed if key is None else mixed ^ key) * SECOND


def last(x: Tensor) -> Tensor:
    """What ends it."""
    return x ^ shifted(x, 16)


def shifted(x: Tensor, by: int) -> Tensor:
    """int32 shifted to the right as if it had no sign."""
    return (x >> by) & ((1 << (32 - by)) - 1)
