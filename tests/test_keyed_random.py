"""The keyed hash behind random numbers on tensors: lowbias32 by hand, one key alone and among others."""

from __future__ import annotations

import torch

from simfl.keyed_random import finalize, mix_first, mix_second, random_bits, split_key, uniform

NUMBERS = [0, 1, 2, 12345, 0x7FFFFFFF, 0x80000000, 0xDEADBEEF, 0xFFFFFFFF]


def signed(x: int) -> int:
    """Return an unsigned 32-bit number as signed."""
    return x - (1 << 32) if x >> 31 else x


def lowbias32(x: int, key: int = 0) -> int:
    """Return Wellons' hash in unsigned arithmetic, with a key before the second multiplication."""
    x = (x ^ x >> 16) * 0x7FEB352D & 0xFFFFFFFF
    x = (x ^ x >> 15 ^ key) * 0x846CA68B & 0xFFFFFFFF
    return x ^ x >> 16


def test_the_hash_without_a_key_is_lowbias32() -> None:
    x = torch.tensor([signed(n) for n in NUMBERS], dtype=torch.int32)
    assert finalize(mix_second(mix_first(x))).tolist() == [signed(lowbias32(n)) for n in NUMBERS]


def test_random_bits_are_two_keyed_rounds_over_the_indices() -> None:
    """Key 7·2³² + 5: low word 5, high word 7; the round with the high word comes first, without the final xor-shift."""

    def by_hand(index: int) -> int:
        x = index ^ (5 * 0x3C6EF35F & 0xFFFFFFFF)
        x = (x ^ x >> 16) * 0x7FEB352D & 0xFFFFFFFF
        x = (x ^ x >> 15 ^ 7) * 0x846CA68B & 0xFFFFFFFF
        return lowbias32(x, key=5) >> 8

    key = torch.tensor((7 << 32) + 5)
    assert [int(word) for word in split_key(key)] == [5, 7]
    assert random_bits(key, 6).tolist() == [by_hand(index) for index in range(6)]
    assert uniform(key, 6).tolist() == [by_hand(index) / 2**24 for index in range(6)]


def test_a_key_has_the_same_bits_alone_and_among_others() -> None:
    keys = torch.tensor([[3, -4], [1 << 62, 0]])
    together = random_bits(keys, 50)
    assert together.shape == (2, 2, 50)
    assert all(torch.equal(together[i, j], random_bits(keys[i, j], 50)) for i in range(2) for j in range(2))
    assert len({tuple(row) for row in together.reshape(4, 50).tolist()}) == 4
