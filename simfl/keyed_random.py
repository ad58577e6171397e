"""Random numbers on tensors, as a hash of a key and of each value's index.

There is no generator and no order of draws, so sequential and vectorized training, CPU and GPU get the same bits.

The hash is Wellons' 32-bit finalizer 'lowbias32', two rounds of xor, shift and multiply, with a key mixed in between
its halves. int32 arithmetic wraps as required; its right shift is arithmetic, so a mask makes it logical.
"""

from __future__ import annotations

import torch
from torch import Tensor

BITS = 24  # random bits per number: the precision of a float32
STEP_MULTIPLIER = 0x5851F42D4C957F2D  # odd: separates the keys of different local steps
NAME_MULTIPLIER = 0x3C6EF372FE94F82B  # odd: separates the keys of different names
KEY_MULTIPLIER = 0x3C6EF35F  # odd: spreads neighbouring keys far apart among the indices
FIRST, SECOND = 0x7FEB352D, 0x846CA68B - (1 << 32)  # multipliers of lowbias32, as signed integers


def random_bits(keys: Tensor, count: int) -> Tensor:
    """Return integers in [0, 2^24), int32 [*keys.shape, count], equal on every device; `keys` is int64."""
    low, high = split_key(keys)
    x = torch.arange(count, dtype=torch.int32, device=keys.device) ^ (low * KEY_MULTIPLIER)[..., None]
    for word in (high, low):
        x = mix_second(mix_first(x), word[..., None])
    return (finalize(x) >> 8) & ((1 << BITS) - 1)


def uniform(keys: Tensor, count: int) -> Tensor:
    """Return numbers in [0, 1), float32 [*keys.shape, count]; `keys` is int64."""
    return random_bits(keys, count).to(torch.float32) / (1 << BITS)


def step_uniform(key: Tensor, step: Tensor, names: Tensor, count: int) -> Tensor:
    """Return numbers in [0, 1) for a local step of a client update, float32 [*names.shape, count].

    Args:
        key: The key of the client update (`ClientUpdate.key`).
        step: The local step (`ClientUpdate.step`).
        names: int64 numbers that tell draws of one step apart; each has a row of its own.
        count: Numbers per name.
    """
    return uniform(key + (2 * step.to(torch.int64) + 1) * STEP_MULTIPLIER + names * NAME_MULTIPLIER, count)


def split_key(keys: Tensor) -> tuple[Tensor, Tensor]:
    """Return the low and the high 32 bits of int64 keys, both int32."""
    return (keys & 0xFFFFFFFF).to(torch.int32), (keys >> 32).to(torch.int32)


def mix_first(x: Tensor) -> Tensor:
    """Apply the first half of lowbias32 to int32; without keys the hash is `finalize(mix_second(mix_first(x)))`."""
    return (x ^ logical_shift(x, 16)) * FIRST


def mix_second(x: Tensor, key: Tensor | None = None) -> Tensor:
    """Apply the second half of lowbias32, with `key` mixed in before the multiplication."""
    mixed = x ^ logical_shift(x, 15)
    return (mixed if key is None else mixed ^ key) * SECOND


def finalize(x: Tensor) -> Tensor:
    """Apply the final xor-shift of lowbias32."""
    return x ^ logical_shift(x, 16)


def logical_shift(x: Tensor, by: int) -> Tensor:
    """Return int32 `x` shifted right by `by` bits, as if it were unsigned."""
    return (x >> by) & ((1 << (32 - by)) - 1)
