"""The contract of codecs on random shapes and values, for every registered codec."""

from __future__ import annotations

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from simfl.codecs import CODECS
from simfl.codecs.base import MessageContext
from simfl.codecs.casts import Cast
from simfl.config.fields import build
from simfl.contract.codecs import check_tensor
from simfl.errors import ConfigError

shapes = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=9)
every_codec = pytest.mark.parametrize("name", sorted(CODECS))
CONTEXT = MessageContext((7, "upload", 3))


def example(name, **settings):
    return build(CODECS[name], {**CODECS[name].example, **settings}, "codec")


def largest_value(codec):
    """Return the largest magnitude that the tests draw: within the range of the format."""
    return min(60000.0, torch.finfo(codec.dtype).max) if isinstance(codec, Cast) else 60000.0


@every_codec
@pytest.mark.parametrize("compress", ["none", "zstd", "lz4"])
@given(data=st.data())
@settings(deadline=None, max_examples=30)
def test_a_codec_keeps_its_contract_for_any_tensor(name, compress, data):
    codec = example(name, compress=compress)
    most = largest_value(codec)
    numbers = st.floats(-most, most, width=32).filter(lambda x: x == 0 or abs(x) > 1e-12)  # squares do not underflow
    array = data.draw(hnp.arrays(np.float32, shapes, elements=numbers))
    assert list(check_tensor(codec, torch.from_numpy(array))) == []


@every_codec
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_codec_refuses_non_finite_values_in_one_line(name, bad):
    with pytest.raises(ValueError, match="1 of 3 values are NaN or infinite"):
        example(name).encode_tensor(torch.tensor([0.0, bad, 1.0]))


@every_codec
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_a_codec_encodes_any_float_dtype_as_its_float32_values(name, dtype):
    codec, x = example(name), (torch.arange(12.0).reshape(3, 4) / 7).to(dtype).t()
    assert np.array_equal(codec.encode_tensor(x), codec.encode_tensor(x.to(torch.float32).contiguous()))


@every_codec
def test_encode_is_update_or_weights(name):
    assert example(name, encode="weights").encode == "weights"
    with pytest.raises(ConfigError, match=r"^codec.encode: unknown 'wieghts'; did you mean 'weights'\?$"):
        CODECS[name](encode="wieghts")


def test_error_feedback_of_a_lossless_codec_is_refused():
    with pytest.raises(ConfigError, match="Float32 is lossless"):
        CODECS["float32"](error_feedback=True)


@pytest.mark.gpu
@every_codec
@pytest.mark.parametrize("shape", [(), (0,), (1,), (65,), (1000, 77), (4, 3, 2)])
def test_a_gpu_encodes_to_the_same_bytes_and_decodes_to_the_same_values(name, shape):
    if name == "svd":
        pytest.skip("two libraries of linear algebra agree to rounding")
    codec, x = example(name), torch.randn(3, *shape, generator=torch.Generator().manual_seed(1))
    assert np.array_equal(codec.encode_tensor(x[0].cuda(), CONTEXT), codec.encode_tensor(x[0], CONTEXT))
    contexts = [MessageContext((7, k)) for k in range(3)]
    here, there = codec.encode_stacked(x, contexts), codec.encode_stacked(x.cuda(), contexts)
    assert [one.cpu().numpy().tobytes() for one in there] == [one.numpy().tobytes() for one in here]
    assert torch.equal(codec.decode_stacked(there, shape, contexts).cpu(), codec.decode_stacked(here, shape, contexts))
