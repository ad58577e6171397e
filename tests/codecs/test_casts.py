"""Float formats: rounding, range, error."""

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from simfl.codecs.casts import BFloat16, Float16


def through(codec, array):
    return codec.decode_tensor(codec.encode_tensor(torch.as_tensor(array)), np.shape(array)).numpy()


@given(hnp.arrays(np.float32, 20, elements=st.floats(-65504, 65504, width=32)))
@settings(deadline=None)
def test_float16_error_is_at_most_2_to_the_minus_11_or_half_a_subnormal_step(array):
    error = np.abs(through(Float16(), array).astype(np.float64) - array)
    assert (error <= np.maximum(2.0**-11 * np.abs(array.astype(np.float64)), 2.0**-25)).all()


@given(hnp.arrays(np.float32, 20, elements=st.floats(-(2.0**127), 2.0**127, width=32)))
@settings(deadline=None)
def test_bfloat16_error_is_at_most_2_to_the_minus_8(array):
    error = np.abs(through(BFloat16(), array).astype(np.float64) - array)
    assert (error <= np.maximum(2.0**-8 * np.abs(array.astype(np.float64)), 2.0**-134)).all()


def test_casts_round_ties_to_even():
    # float16 has 10 bits after the point, bfloat16 7: 1 + 2^-11 lies halfway between 1 and 1 + 2^-10
    assert through(Float16(), [1 + 2**-11, 1 + 3 * 2**-11]).tolist() == [1.0, 1 + 2**-9]
    assert through(BFloat16(), [1 + 2**-8, 1 + 3 * 2**-8]).tolist() == [1.0, 1 + 2**-6]


def test_casts_are_little_endian():
    assert bytes(Float16().encode_tensor(torch.tensor([1.0, -2.0]))).hex() == "003c00c0"
    assert bytes(BFloat16().encode_tensor(torch.tensor([1.0, -2.0]))).hex() == "803f00c0"


def test_casts_refuse_values_out_of_range_with_the_value():
    assert through(Float16(), [65504.0, 65519.0]).tolist() == [65504.0, 65504.0]
    with pytest.raises(ValueError, match=r"the value 65520 is beyond 65504, the largest torch.float16 holds"):
        Float16().encode_tensor(torch.tensor([1.0, -65520.0]))
    with pytest.raises(ValueError, match=r"largest torch.bfloat16 holds"):
        BFloat16().encode_tensor(torch.tensor([3.4e38]))
