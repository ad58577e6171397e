"""The keyed hash that chance on tensors is made of: lowbias32 by hand, and a key alone as among others."""

from __future__ import annotations

import torch

from simfl.keyed_random import first, last, random_bits, second, uniform, words

NUMBERS = [0, 1, 2, 12345, 0x7FFFFFFF, 0x80000000, 0xDEADBEEF, 0xFFFFFFFF]


def signed(x: int) -> int:
    """A word of 32 bits as int32 has it."""
    return x - (1 << 32) if x >> 31 else x


def lowbias32(x: int, key: int = 0) -> int:
    """As Wellons writes it, in whole numbers without a sign; keyed before the second multiplication."""
    x = (x ^ x >> 16) * 0x7FEB352D & 0xFFFFFFFF
    x = (x ^ x >> 15 ^ key) * 0x846CA68B & 0xFFFFFFFF
    return x ^ x >> 16


def test_without_a_key_it_is_lowbias32() -> None:
    x = torch.tensor([signed(n) for n in NUMBERS], dtype=torch.int32)
    assert last(second(first(x))).tolist() == [signed(lowbias32(n)) for n in NUMBERS]


def test_bits_are_two_keyed_rounds_over_the_places() -> None:
    """Key 7·2³² + 5: low word 5, high word 7; the round with the high word comes first and is not ended."""

    def by_hand(place: int) -> int:
        x = place ^ (5 * 0x3C6EF35F & 0xFFFFFFFF)
        x = (x ^ x >> 16) * 0x7FEB352D & 0xFFFFFFFF
        x = (x ^ x >> 15 ^ 7) * 0x846CA68B & 0xFFFFFFFF
        return lowbias32(x, key=5) >> 8

    key = torch.tensor((7 << 32) + 5)
    assert [int(word) for word in words(key)] == [5, 7]
    assert random_bits(key, 6).tolist() == [by_hand(place) for place in range(6)]
    assert uniform(key, 6).tolist() == [by_hand(place) / 2**24 for place in range(6)]


def test_a_key_has_its_bits_alone_as_among_others() -> None:
    keys = torch.tensor([[3, -4], [1 << 62, 0]])
    together = random_bits(keys, 50)
    assert together.shape == (2, 2, 50)
    assert all(torch.equal(together[i, j], random_bits(keys[i, j], 50)) for i in range(2) for j in range(2))
    assert len({tuple(row) for row in together.reshape(4, 50).tolist()}) == 4
