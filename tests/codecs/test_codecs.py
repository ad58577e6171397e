"""The contract that every codec of the table keeps."""

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from simfl.codecs import CODECS
from simfl.errors import ConfigError

shapes = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=9)
values = st.floats(-60000, 60000, width=32)
every_codec = pytest.mark.parametrize("name", sorted(CODECS))


@every_codec
@given(data=st.data())
@settings(deadline=None, max_examples=60)
def test_any_shape_comes_back_and_the_payload_has_the_stated_size(name, data):
    codec = CODECS[name]()
    array = data.draw(hnp.arrays(np.float32, shapes, elements=values))
    payload = codec.encode(torch.from_numpy(array))
    back = codec.decode(payload, array.shape)
    assert (payload.dtype, payload.ndim) == (np.uint8, 1)
    assert len(payload) == codec.size(array.shape)
    assert (back.dtype, tuple(back.shape)) == (torch.float32, array.shape)


@every_codec
@given(array=hnp.arrays(np.float32, shapes, elements=values))
@settings(deadline=None, max_examples=60)
def test_what_was_decoded_encodes_to_the_same_bits(name, array):
    codec = CODECS[name]()
    once = codec.decode(codec.encode(torch.from_numpy(array)), array.shape)
    twice = codec.decode(codec.encode(once), array.shape)
    assert once.numpy().tobytes() == twice.numpy().tobytes()


@every_codec
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 0, 2), (65,)])
def test_sizes_zero_and_one(name, shape):
    codec, x = CODECS[name](), torch.full(shape, -0.5)
    assert torch.equal(codec.decode(codec.encode(x), shape), x)


@every_codec
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_value_that_is_not_finite_is_refused(name, bad):
    with pytest.raises(ValueError, match="1 of 3 values are NaN or infinite"):
        CODECS[name]().encode(torch.tensor([0.0, bad, 1.0]))


@every_codec
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_any_float_dtype_and_layout_encodes_as_its_float32_values(name, dtype):
    codec, x = CODECS[name](), (torch.arange(12.0).reshape(3, 4) / 7).to(dtype).t()
    assert np.array_equal(codec.encode(x), codec.encode(x.to(torch.float32).contiguous()))


@every_codec
def test_the_decoded_tensor_owns_its_memory(name):
    codec = CODECS[name]()
    payload = codec.encode(torch.ones(5))
    payload.setflags(write=False)
    codec.decode(payload, (5,)).zero_()
    assert torch.equal(codec.decode(payload, (5,)), torch.ones(5))


@every_codec
def test_lossless_means_bit_equal_and_lossy_codecs_lose(name):
    codec, x = CODECS[name](), torch.randn(257, generator=torch.Generator().manual_seed(0))
    assert torch.equal(codec.decode(codec.encode(x), (257,)), x) == codec.lossless


@every_codec
def test_what_is_encoded_is_a_delta_or_weights(name):
    assert CODECS[name](of="weights").of == "weights"
    with pytest.raises(ConfigError, match=r"^codec.of: unknown 'wieghts'; did you mean 'weights'\?$"):
        CODECS[name](of="wieghts")


def test_error_feedback_on_a_lossless_codec_is_refused():
    with pytest.raises(ConfigError, match="Float32 loses nothing"):
        CODECS["float32"](error_feedback=True)


@pytest.mark.gpu
@every_codec
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_cuda_tensor_encodes_to_the_same_bytes(name):
    codec, x = CODECS[name](), torch.randn(1000, 77, generator=torch.Generator().manual_seed(1))
    assert np.array_equal(codec.encode(x.cuda()), codec.encode(x))
