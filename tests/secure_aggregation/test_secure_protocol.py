"""Masks, shares, rotation, integers and message bytes of secure aggregation."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from simfl.errors import ConfigError
from simfl.experiment import SecureAggregation
from simfl.secure_aggregation import hadamard, masks, messages, shamir
from simfl.secure_aggregation.fixed_point import FixedPoint, check_modulus
from simfl.secure_aggregation.protocol import SecureRound, secure_round

CLIENTS = range(3, 23)
SETTINGS = {
    "all neighbours": SecureAggregation(clip=1.0),
    "a ring": SecureAggregation(clip=1.0, neighbors=6, bits=40),
    "few bits": SecureAggregation(clip=1.0, bits=12, value_bits=6),
    "dropouts": SecureAggregation(clip=1.0, dropout=0.2, late_dropout=0.1),
    "dropouts in a ring": SecureAggregation(clip=1.0, dropout=0.15, late_dropout=0.1, neighbors=10, bits=60),
}


def in_round(settings: SecureAggregation, number: int = 0) -> SecureRound:
    return secure_round(settings, (7, "secure_aggregation", 0, number), CLIENTS)


@pytest.mark.parametrize("name", SETTINGS)
def test_the_unmasked_sum_is_the_plain_sum_to_the_bit(name: str) -> None:
    secure, modulus, count = in_round(SETTINGS[name]), 1 << SETTINGS[name].bits, 33
    assert not secure.refusal
    assert bool(secure.dropped) == ("dropouts" in name) == bool(secure.late)
    rng, plain, masked = np.random.default_rng(0), np.zeros(count, object), np.zeros(count, object)
    for client in secure.senders:
        values = rng.integers(0, modulus, count).astype(object)
        mask = secure.mask_of(client, "weights", count).astype(object)
        assert len({int(one) % modulus for one in mask}) > count // 2
        plain, masked = plain + values, masked + (values + mask) % modulus
    assert ((masked - plain) % modulus).any()
    assert not ((masked - secure.left_over("weights", count).astype(object) - plain) % modulus).any()


def test_masks_differ_between_parts_rounds_and_clients() -> None:
    first, second = in_round(SETTINGS["all neighbours"]), in_round(SETTINGS["all neighbours"], 1)
    drawn = [first.mask_of(3, "weights", 8), first.mask_of(3, "control", 8), first.mask_of(4, "weights", 8)]
    drawn.append(second.mask_of(3, "weights", 8))
    assert len({one.tobytes() for one in drawn}) == 4


@pytest.mark.parametrize("neighbors", [None, 4])
def test_masks_of_several_clients_are_those_of_each_alone(neighbors: int | None) -> None:
    settings = SecureAggregation(clip=1.0, neighbors=neighbors)
    secure = secure_round(settings, ("seed", 0, 0), range(12))
    together = secure.masks_of([7, 2, 5, 11], "weights", 33)
    for row, client in zip(together, (7, 2, 5, 11), strict=True):
        assert row.tolist() == secure.mask_of(client, "weights", 33).tolist()
    assert secure.masks_of(range(12), "weights", 33).sum(0, dtype="<u4").tolist() != [0] * 33  # own masks stay


def test_a_masked_upload_looks_uniform() -> None:
    secure = in_round(SETTINGS["all neighbours"])
    top = secure.mask_of(5, "weights", 60_000) >> 28  # the highest four of 32 bits
    counts = np.bincount(top, minlength=16)
    assert float(((counts - 3750) ** 2 / 3750).sum()) < 50  # chi-square with 15 degrees of freedom, p = 1e-5


def test_a_threshold_of_shares_recovers_a_secret_and_fewer_do_not() -> None:
    rng = np.random.default_rng(1)
    secret, points = rng.bytes(32), np.array([2, 9, 40, 65536])
    shares = shamir.share(secret, rng.integers(0, shamir.PRIME, (2, shamir.WORDS)), points)
    for some in ([0, 1, 2], [3, 1, 0]):
        assert shamir.recover(points[some], shares[some]) == secret
    two = points[:2].tolist()  # a line through two points of a parabola meets the axis elsewhere
    missed = [
        (y0 * two[1] - y1 * two[0]) * pow(two[1] - two[0], -1, shamir.PRIME) % shamir.PRIME
        for y0, y1 in zip(*shares[:2].tolist(), strict=True)
    ]
    assert missed != np.frombuffer(secret, "<u2").tolist()
    assert len(shamir.pack(shares[0])) == shamir.SHARE_BYTES == 34


def test_both_ends_of_a_pair_agree() -> None:
    keys = [masks.secrets_of("a").key, masks.secrets_of("b").key]
    public = masks.public_keys(keys)
    assert masks.agreed(keys[0], public[1:])[0] == masks.agreed(keys[1], public[:1])[0]
    assert int(public[0]) == pow(masks.GENERATOR, int.from_bytes(keys[0]) % (masks.PRIME - 1), masks.PRIME)


def test_a_ring_is_regular_and_mutual() -> None:
    secure = in_round(SETTINGS["a ring"])
    for client in secure.clients:
        assert len(secure.neighbors(client)) == 6
        assert all(client in secure.neighbors(other) for other in secure.neighbors(client))


def test_too_few_survivors_are_refused_with_numbers() -> None:
    settings = SecureAggregation(clip=1.0, dropout=0.5, threshold=15)
    assert "needs 15 uploads (20 sampled" in in_round(settings).refusal
    settings = SecureAggregation(clip=1.0, late_dropout=0.6, threshold=15)
    assert "needs 15 shares of each secret" in in_round(settings).refusal
    settings = SecureAggregation(clip=1.0, threshold=5, min_survivors=21)
    assert "needs 21 uploads" in in_round(settings).refusal


@pytest.mark.parametrize("bits", [8, 13, 32, 60])
def test_the_counted_length_is_that_of_the_encoding(bits: int) -> None:
    values = np.random.default_rng(0).integers(0, 1 << bits, 77, dtype=np.uint64)
    encoded = messages.encode_vector(values, bits)
    assert len(encoded) == messages.vector_bytes(77, bits)
    assert (messages.decode_vector(encoded, 77, bits) == values).all()


def test_the_bytes_of_the_protocol_by_hand() -> None:
    secure = in_round(SETTINGS["dropouts"])
    n, own = len(secure.clients), secure.protocol_payloads()
    kept = next(client for client in secure.responders)
    assert own[kept] == [
        ("upload", "secure_keys", 64),
        ("download", "secure_keys", 68 * (n - 1)),
        ("upload", "secure_shares", (4 + 12 + 8 + 2 * 34 + 16) * (n - 1)),
        ("download", "secure_shares", (4 + 12 + 8 + 2 * 34 + 16) * (n - 1)),
        ("download", "secure_survivors", 4 * (len(secure.senders) - 1)),
        ("upload", "secure_unmask", 38 * n),
    ]
    assert [len(own[client]) for client in sorted(secure.dropped | secure.late)] == [4] * len(
        secure.dropped | secure.late
    )


def test_fixed_point_numbers_and_their_sum() -> None:
    grid, values = FixedPoint(2.0, 7, 8), torch.tensor([[-3.0, -2.0, 0.1, 0.2, 2.0]], dtype=torch.float64)
    assert grid.encode(values, None).tolist() == [[-7, -7, 0, 1, 7]]
    total = grid.wrap(grid.encode(values, None)[0] * 18)  # 18·7 = 126 still fits into 8 bits
    assert grid.centered(total).tolist() == [-126, -126, 0, 18, 126]
    assert torch.allclose(grid.decode(total), torch.tensor([-36.0, -36.0, 0.0, 36 / 7, 36.0], dtype=torch.float64))


def test_stochastic_rounding_is_unbiased_and_keyed() -> None:
    grid, values = FixedPoint(1.0, 3, 16), torch.full((2, 20_000), 0.25, dtype=torch.float64)
    keys = torch.tensor([5, 6])
    first = grid.encode(values, keys)
    assert torch.equal(first, grid.encode(values, keys))
    assert torch.equal(first[1:], grid.encode(values[1:], keys[1:]))  # the row alone
    assert not torch.equal(first[0], first[1])
    assert abs(float(first.double().mean()) - 0.75) < 0.015


def test_a_modulus_that_cannot_hold_the_sum_is_refused_with_numbers() -> None:
    settings = SecureAggregation(clip=1.0, bits=16, value_bits=12)  # 2047 levels; 16 · 2047 = 32752 < 32768
    check_modulus(settings, 16, 1)
    with pytest.raises(ConfigError, match=r"at most 16 clients.*a round may have 17; allowed: bits: 17"):
        check_modulus(settings, 17, 1)
    with pytest.raises(ConfigError, match="examples may add up to 40,000"):
        check_modulus(settings, 10, 4000)


def test_the_rotation_is_orthonormal_and_spreads_a_vector() -> None:
    values = np.zeros((2, 256))
    values[0, 3] = 1.0
    values[1] = np.random.default_rng(0).normal(size=256)
    sign = hadamard.signs(256, 1, "rotation")
    rotated = hadamard.rotate(values, sign)
    assert np.allclose(hadamard.rotate_back(rotated, sign), values)
    assert np.allclose(np.linalg.norm(rotated, axis=1), np.linalg.norm(values, axis=1))
    assert np.allclose(np.abs(rotated[0]), 1 / math.sqrt(256))
