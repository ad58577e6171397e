"""NF4: levels, blocks, error, and the published size of a message."""

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from simfl.codecs.nf4 import LEVELS, MIDPOINTS, Nf4, _nearest
from simfl.errors import ConfigError


def through(x, block=64):
    codec = Nf4(block=block)
    return codec.decode_tensor(codec.encode_tensor(x), tuple(x.shape))


def test_the_track_1_message_has_its_published_size_in_nf4():
    # 3,419,136 values: 1,709,568 B of codes and 53,424 scales of 4 B
    assert Nf4().size((3_419_136,)) == 1_709_568 + 4 * 53_424 == 1_923_264
    assert len(Nf4().encode_tensor(torch.zeros(3_419_136))) == 1_923_264


@pytest.mark.parametrize(("count", "size"), [(0, 0), (1, 5), (2, 5), (63, 36), (64, 36), (65, 41), (129, 77)])
def test_nf4_pays_a_whole_scale_for_a_tail_block_and_a_whole_byte_for_an_odd_value(count, size):
    assert Nf4().size((count,)) == len(Nf4().encode_tensor(torch.ones(count))) == size


def test_nf4_levels_times_the_largest_magnitude_are_exact():
    x = torch.tensor(LEVELS) * 3.5
    assert torch.equal(through(x), x)


def test_the_nf4_payload_is_scales_then_two_values_a_byte_low_bits_first():
    # scale 2 = 0x40000000; −2 is level 0, 0 is level 7, 2 is level 15
    assert bytes(Nf4().encode_tensor(torch.tensor([-2.0, 0.0, 2.0]))).hex() == "00000040" + "70" + "0f"


def test_nf4_is_exact_for_zero_and_the_largest_magnitude_of_a_block():
    x = torch.tensor([[0.3, -7.0, 0.0, 1.0], [1e-20, 0.0, -3e-21, 0.0], [0.0, 0.0, 0.0, 0.0]])
    back = through(x, block=4)
    assert back[0, 1] == -7.0
    assert back[1, 0] == x[1, 0]
    assert (back[x == 0] == 0).all()


def test_nf4_rounds_to_the_nearest_level():
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    back = through(x, block=50).reshape(20, 50).numpy()
    for values, got in zip(x.reshape(20, 50).numpy().astype(np.float64), back, strict=True):
        levels = np.array(LEVELS) * np.abs(values).max()
        nearest = levels[np.abs(values[:, None] - levels[None]).argmin(axis=1)]
        np.testing.assert_allclose(got, nearest, rtol=1e-6, atol=0)


def test_nf4_rounds_a_midpoint_to_the_lower_level():
    x = torch.tensor([*MIDPOINTS, 1.0])
    assert torch.equal(through(x), torch.tensor([*LEVELS[:-1], 1.0]))


@given(hnp.arrays(np.float32, st.integers(0, 200), elements=st.floats(width=32, allow_nan=False, allow_infinity=False)))
@settings(deadline=None)
def test_the_nf4_error_is_at_most_half_the_widest_gap(array):
    back = through(torch.from_numpy(array), block=32).numpy().astype(np.float64)
    for start in range(0, len(array), 32):
        block = array[start : start + 32].astype(np.float64)
        bound = 0.15191 * np.abs(block).max() + 2e-45  # half of 1 − 0.6962; float32's smallest step is 1.4e-45
        assert (np.abs(back[start : start + 32] - block) <= bound).all()


@given(hnp.arrays(np.float32, st.integers(0, 200), elements=st.floats(width=32, allow_nan=False, allow_infinity=False)))
@settings(deadline=None)
def test_nf4_is_idempotent_over_the_whole_range_of_float32(array):
    once = through(torch.from_numpy(array))
    assert torch.equal(through(once), once)


@pytest.mark.parametrize("block", [0, -64])
def test_nf4_refuses_a_block_without_values(block):
    with pytest.raises(ConfigError, match=f"^codec.block: {block} given; allowed: 1 and more$"):
        Nf4(block=block)


def test_nf4_blocks_of_one_value_are_lossless():
    x = torch.randn(9, generator=torch.Generator().manual_seed(3))
    assert torch.equal(through(x, block=1), x)


def test_nf4_codes_equal_a_search_among_the_midpoints():
    x = torch.cat([torch.linspace(-1, 1, 10_001), torch.tensor(MIDPOINTS)])
    assert torch.equal(_nearest(x).to(torch.int64), torch.bucketize(x, torch.tensor(MIDPOINTS)))
