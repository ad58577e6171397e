"""int8, sign, top-k, random-k, low rank and compression: bytes and values by hand."""

import numpy as np
import pytest
import torch

from simfl.codecs.base import MessageContext
from simfl.codecs.casts import Float32
from simfl.codecs.int8 import Int8
from simfl.codecs.nf4 import Nf4
from simfl.codecs.payload import HEADER
from simfl.codecs.sign import Sign
from simfl.codecs.sparse import RandomK, TopK, largest
from simfl.codecs.svd import Svd
from simfl.errors import ConfigError

FIRST, LAST = MessageContext((1,), progress=0.0), MessageContext((1,), progress=1.0)


def through(codec, x, context=FIRST):
    x = torch.as_tensor(x)
    return codec.decode_tensor(codec.encode_tensor(x, context), tuple(x.shape), context)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_int8_sends_the_largest_magnitude_and_a_byte_a_value():
    # scale 2 = 0x40000000; −2 is −127, 1 is 63.5 and goes to the even 64, 0 is 0
    assert bytes(Int8().encode_tensor(torch.tensor([-2.0, 1.0, 0.0]))).hex() == "00000040" + "81" + "40" + "00"


def test_int8_per_channel_costs_a_scale_for_each_row_and_a_small_row_keeps_its_precision():
    x = torch.tensor([[100.0, -50.0], [0.001, 0.0005]])
    whole, rows = Int8(), Int8(per="channel")
    assert (whole.size((2, 2)), rows.size((2, 2)), rows.size((5,))) == (8, 12, 9)
    assert through(whole, x)[1].tolist() == [0.0, 0.0]
    torch.testing.assert_close(through(rows, x)[1], x[1], atol=0.001 / 254, rtol=0)


def test_stochastic_rounding_is_unbiased_with_an_error_below_one_step():
    x, codec = torch.full((20_000,), 0.3), Int8(rounding="stochastic")
    x[0] = 127.0  # a step is 1
    back = through(codec, x)[1:]
    assert set(back.unique().tolist()) == {0.0, 1.0}
    assert abs(float(back.mean()) - 0.3) < 0.02  # six standard deviations of √(0.21 / 19,999)


def test_stochastic_rounding_draws_new_numbers_in_each_message():
    x, codec = normal(1000), Int8(rounding="stochastic")
    assert not np.array_equal(
        codec.encode_tensor(x, MessageContext((1,))), codec.encode_tensor(x, MessageContext((2,)))
    )


def test_sign_sends_the_mean_magnitude_and_eight_signs_a_byte():
    # mean of 1, 2, 3 is 2 = 0x40000000; signs + − + are bits 1, 0, 1
    assert bytes(Sign().encode_tensor(torch.tensor([1.0, -2.0, 3.0]))).hex() == "00000040" + "05"
    assert through(Sign(), [1.0, -2.0, 3.0]).tolist() == [2.0, -2.0, 2.0]
    assert Sign().size((9,)) == 4 + 2


def test_topk_keeps_the_largest_values_and_the_first_of_equal_ones():
    assert through(TopK(keep=0.5), [1.0, -3.0, 2.0, -2.0]).tolist() == [0.0, -3.0, 2.0, 0.0]
    assert through(TopK(keep=0.5), [[1.0, 1.0], [1.0, 1.0]]).tolist() == [[1.0, 1.0], [0.0, 0.0]]


@pytest.mark.parametrize(
    ("count", "keep", "places"), [(1000, 0.01, 40), (1000, 0.1, 125), (1000, 1.0, 125), (7, 0.01, 1)]
)
def test_positions_cost_four_bytes_each_or_one_bit_per_value(count, keep, places):
    # 10 of 1000 values: 40 bytes; 100 of them: 400, or 125 as bits
    kept = max(1, round(count * keep))
    assert TopK(keep=keep).size((count,)) == 4 * kept + places
    assert RandomK(keep=keep, positions="sent").size((count,)) == 4 * kept + places
    assert RandomK(keep=keep).size((count,)) == 4 * kept


def test_random_positions_follow_from_the_seed_whether_sent_or_not():
    x = normal(300)
    for codec in (RandomK(keep=0.02), RandomK(keep=0.02, positions="sent"), RandomK(keep=0.3, positions="sent")):
        back = through(codec, x)
        assert int((back != 0).sum()) == round(300 * codec.keep)
        assert torch.equal(back[back != 0], x[back != 0])
    assert torch.equal(through(RandomK(keep=0.02), x), through(RandomK(keep=0.02, positions="sent"), x))
    assert not torch.equal(through(RandomK(keep=0.02), x, FIRST), through(RandomK(keep=0.02), x, MessageContext((2,))))


def test_randomk_draws_every_position_equally_often():
    drawn = sum(through(RandomK(keep=0.25), torch.ones(40), MessageContext((k,))) for k in range(2000))
    assert float(drawn.sum()) == 2000 * 10
    assert 400 < float(drawn.min()) < float(drawn.max()) < 600  # 500 expected, standard deviation 19


def test_unbiased_randomk_has_the_tensor_as_expectation():
    x, codec = normal(50), RandomK(keep=0.2, unbiased=True)
    mean = sum(through(codec, x, MessageContext((k,))) for k in range(4000)) / 4000
    torch.testing.assert_close(mean, x, atol=0.3, rtol=0)  # standard deviation |x|·√(4 / 4000)
    with pytest.raises(ConfigError, match=r"^codec.unbiased: true makes the error larger"):
        RandomK(unbiased=True, error_feedback=True)


def test_largest_selects_the_first_of_equal_scores():
    assert largest(torch.tensor([[5, 7, 7, 7, 1]]), 2).tolist() == [[False, True, True, False, False]]


def test_svd_sends_a_matrix_of_rank_one_with_one_rank():
    x = torch.outer(normal(30), normal(20, seed=1))
    for energy in (0.5, 1.0):
        codec = Svd(energy=energy)
        assert len(codec.encode_tensor(x)) == 4 + 4 * 1 * (30 + 20 + 1)
        torch.testing.assert_close(through(codec, x), x)


def test_svd_with_all_energy_of_a_full_matrix_is_lossless():
    x = normal(12, 9)
    assert len(Svd(energy=1.0).encode_tensor(x)) == 4 + 4 * 108  # nine ranks of 22 values would cost more than 108
    assert torch.equal(through(Svd(energy=1.0), x), x)


def test_svd_sends_a_zero_matrix_with_rank_zero():
    assert bytes(Svd().encode_tensor(torch.zeros(6, 5))).hex() == "00000000"
    assert torch.equal(through(Svd(), torch.zeros(6, 5)), torch.zeros(6, 5))


def test_svd_rank_is_the_smallest_with_the_energy_and_grows_over_the_phase():
    # squares 16, 9, 4, 1 of 30: 53.3 %, 83.3 %, 96.7 %, 100 %
    singular = torch.tensor([4.0, 3.0, 2.0, 1.0])
    codec = Svd(energy=0.5, final_energy=0.98)
    assert [codec.rank(singular, progress) for progress in (0.0, 0.5, 0.9, 1.0)] == [1, 2, 3, 4]  # .5, .74, .932, .98


def test_svd_keeps_the_stated_fraction_of_the_energy():
    x = normal(60, 8) @ normal(8, 50, seed=1) + 0.1 * normal(60, 50, seed=2)
    for context, energy in ((FIRST, 0.9), (LAST, 0.99)):
        lost = through(Svd(energy=0.9, final_energy=0.99), x, context) - x
        assert float(lost.square().sum() / x.square().sum()) <= 1 - energy + 1e-6
    assert len(Svd(energy=0.9, final_energy=0.99).encode_tensor(x, FIRST)) < len(
        Svd(energy=0.9, final_energy=0.99).encode_tensor(x, LAST)
    )


def test_svd_sends_vectors_in_float32_and_kernels_as_matrices():
    assert [len(Svd().encode_tensor(normal(*shape))) for shape in [(7,), (7, 1), (1, 7)]] == [28, 28, 28]
    kernels = torch.outer(normal(8), normal(18, seed=1)).reshape(8, 2, 3, 3)
    assert len(Svd().encode_tensor(kernels)) == 4 + 4 * (8 + 18 + 1)
    torch.testing.assert_close(through(Svd(), kernels), kernels)


@pytest.mark.parametrize("name", ["zstd", "lz4"])
def test_compression_shortens_repetitive_bytes_and_stores_others_uncompressed(name):
    plain, codec = Float32(), Float32(compress=name)
    assert len(codec.encode_tensor(torch.zeros(1000))) < 200
    x = normal(3)
    assert bytes(codec.encode_tensor(x)) == bytes(HEADER) + bytes(plain.encode_tensor(x))
    for x in (torch.zeros(1000), normal(1000), torch.empty(0)):
        assert torch.equal(through(codec, x), x)


def test_compression_of_a_lossy_codec_loses_nothing_more():
    x = normal(500).round()
    assert torch.equal(through(Nf4(compress="zstd"), x), through(Nf4(), x))
    assert len(Nf4(compress="zstd").encode_tensor(x)) < len(Nf4().encode_tensor(x))
