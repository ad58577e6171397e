"""The contract that every codec of the table keeps."""

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from simfl.codecs import CODECS
from simfl.codecs.base import MessageContext
from simfl.errors import ConfigError

shapes = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=9)
values = st.floats(-60000, 60000, width=32)
every_codec = pytest.mark.parametrize("name", sorted(CODECS))
CHANGED_ONCE_MORE = ("svd",)  # a product of factors has other factors in its last bits
SPARSE = ("topk", "randomk")  # by their nature they drop values
HERE = MessageContext((7, "upload", 3))


@every_codec
@pytest.mark.parametrize("compress", ["none", "zstd", "lz4"])
@given(data=st.data())
@settings(deadline=None, max_examples=30)
def test_any_shape_comes_back_and_the_payload_has_the_stated_size(name, compress, data):
    codec = CODECS[name](compress=compress)
    array = data.draw(hnp.arrays(np.float32, shapes, elements=values))
    payload = codec.encode_tensor(torch.from_numpy(array), HERE)
    back = codec.decode_tensor(payload, array.shape, HERE)
    assert (payload.dtype, payload.ndim) == (np.uint8, 1)
    assert len(payload) == codec.size(array.shape) or (not codec.fixed_size and len(payload) < codec.size(array.shape))
    assert (back.dtype, tuple(back.shape)) == (torch.float32, array.shape)


@every_codec
@given(array=hnp.arrays(np.float32, shapes, elements=values))
@settings(deadline=None, max_examples=60)
def test_what_was_decoded_encodes_to_the_same_bits(name, array):
    if name in CHANGED_ONCE_MORE:
        return
    codec = CODECS[name]()
    once = codec.decode_tensor(codec.encode_tensor(torch.from_numpy(array), HERE), array.shape, HERE)
    twice = codec.decode_tensor(codec.encode_tensor(once, HERE), array.shape, HERE)
    assert once.numpy().tobytes() == twice.numpy().tobytes()


@every_codec
@pytest.mark.parametrize("compress", ["none", "zstd"])
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 0, 2), (65,), (9, 7), (4, 3, 2)])
def test_the_payloads_of_a_cohort_are_those_of_its_clients_one_by_one(name, compress, shape):
    codec, x = CODECS[name](compress=compress), torch.randn(5, *shape, generator=torch.Generator().manual_seed(0))
    contexts = [MessageContext((7, k)) for k in range(5)]
    together = codec.encode_stacked(x, contexts)
    alone = [codec.encode_tensor(x[k], contexts[k]) for k in range(5)]
    assert [one.numpy().tobytes() for one in together] == [one.tobytes() for one in alone]
    back = codec.decode_stacked(together, shape, contexts)
    assert all(torch.equal(back[k], codec.decode_tensor(alone[k], shape, contexts[k])) for k in range(5))


@every_codec
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 0, 2), (65,)])
def test_sizes_zero_and_one(name, shape):
    codec, x = CODECS[name](), torch.full(shape, -0.5)
    back = codec.decode_tensor(codec.encode_tensor(x), shape)
    if name in SPARSE and x.numel() > 1:
        assert int((back == x).sum()) == 6  # 10 % of 65, rounded; the rest is zero
        assert int((back == 0).sum()) == 59
    else:
        assert torch.equal(back, x)


@every_codec
@given(array=hnp.arrays(np.float32, shapes, elements=values))
@settings(deadline=None, max_examples=60)
def test_the_error_is_within_the_stated_bound(name, array):
    codec = CODECS[name]()
    error = codec.decode_tensor(
        codec.encode_tensor(torch.from_numpy(array), HERE), array.shape, HERE
    ).numpy() - array.astype(float)
    norm, largest = np.linalg.norm(array.astype(float)), np.abs(array).max(initial=0.0)
    bound = {
        "float32": 0.0,
        "float16": max(2.0**-11 * norm, 1e-6),
        "bfloat16": max(2.0**-8 * norm, 1e-30),
        "int8": largest / 254 * array.size**0.5,
        "nf4": 0.152 * largest * array.size**0.5,
        "sign": norm,
        "topk": (1 - min(1.0, max(1, round(0.1 * array.size)) / max(1, array.size))) ** 0.5 * norm,
        "randomk": norm,
        "svd": (1 - 0.95) ** 0.5 * norm,
    }[name]
    assert np.linalg.norm(error) <= bound * (1 + 1e-4) + 1e-4 * norm * (name == "svd") + 1e-30


@every_codec
def test_chance_depends_on_the_context_alone(name):
    codec, x = CODECS[name](), torch.randn(40, 30, generator=torch.Generator().manual_seed(0))
    assert np.array_equal(codec.encode_tensor(x, MessageContext((1, 2))), codec.encode_tensor(x, MessageContext((1, 2))))


@every_codec
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_value_that_is_not_finite_is_refused(name, bad):
    with pytest.raises(ValueError, match="1 of 3 values are NaN or infinite"):
        CODECS[name]().encode_tensor(torch.tensor([0.0, bad, 1.0]))


@every_codec
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_any_float_dtype_and_layout_encodes_as_its_float32_values(name, dtype):
    codec, x = CODECS[name](), (torch.arange(12.0).reshape(3, 4) / 7).to(dtype).t()
    assert np.array_equal(codec.encode_tensor(x), codec.encode_tensor(x.to(torch.float32).contiguous()))


@every_codec
def test_the_decoded_tensor_owns_its_memory(name):
    codec = CODECS[name](**({"keep": 1.0} if name in SPARSE else {}))
    payload = codec.encode_tensor(torch.ones(5))
    payload.setflags(write=False)
    codec.decode_tensor(payload, (5,)).zero_()
    assert torch.equal(codec.decode_tensor(payload, (5,)), torch.ones(5))


@every_codec
def test_lossless_means_bit_equal_and_lossy_codecs_lose(name):
    codec, y = CODECS[name](), torch.randn(32, 4, generator=torch.Generator().manual_seed(0))
    x = y @ y.T  # of rank 4
    assert torch.equal(codec.decode_tensor(codec.encode_tensor(x), (32, 32)), x) == codec.lossless


@every_codec
def test_what_is_encoded_is_a_delta_or_weights(name):
    assert CODECS[name](encode="weights").of == "weights"
    with pytest.raises(ConfigError, match=r"^codec.encode: unknown 'wieghts'; did you mean 'weights'\?$"):
        CODECS[name](of="wieghts")


def test_error_feedback_on_a_lossless_codec_is_refused():
    with pytest.raises(ConfigError, match="Float32 loses nothing"):
        CODECS["float32"](error_feedback=True)


@pytest.mark.gpu
@every_codec
@pytest.mark.parametrize("shape", [(), (0,), (1,), (65,), (1000, 77), (4, 3, 2)])
def test_tensors_on_a_gpu_encode_to_the_same_bytes_and_come_back_the_same(name, shape):
    if name == "svd":
        pytest.skip("two libraries of linear algebra agree to rounding")
    codec, x = CODECS[name](), torch.randn(3, *shape, generator=torch.Generator().manual_seed(1))
    assert np.array_equal(codec.encode_tensor(x[0].cuda(), HERE), codec.encode_tensor(x[0], HERE))
    contexts = [MessageContext((7, k)) for k in range(3)]
    here, there = codec.encode_stacked(x, contexts), codec.encode_stacked(x.cuda(), contexts)
    assert [one.cpu().numpy().tobytes() for one in there] == [one.numpy().tobytes() for one in here]
    assert torch.equal(codec.decode_stacked(there, shape, contexts).cpu(), codec.decode_stacked(here, shape, contexts))
