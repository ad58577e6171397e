"""Sums on a fixed tree, globs, hashes, files."""

import hashlib
import io

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load as library_load

from simfl import weights as W
from simfl.errors import ConfigError

floats = st.floats(-1e6, 1e6, width=32)
rows = st.lists(st.one_of(st.none(), floats), max_size=40)


def bits(weights):
    return None if weights is None else {name: (t.dtype, W.to_raw_bytes(t).tobytes()) for name, t in weights.items()}


def item(value):
    return None if value is None else {"w": torch.tensor([value, value / 3], dtype=torch.float32)}


def test_tree_sum_adds_pairs_and_carries_an_odd_last():
    values = [1e8, 1.0, -1e8, 3.0, 0.25]
    # float32: (1e8 + 1) = 1e8, (−1e8 + 3) = −1e8, their sum 0, + 0.25; from left to right it would be 3.25
    total = W.tree_sum([{"w": torch.tensor(v)} for v in values])
    assert total["w"].item() == 0.25
    assert sum(torch.tensor(v) for v in values).item() == 3.25


def test_tree_sum_skips_empty_positions_and_sums_none_to_none():
    negative_zero = {"w": torch.tensor(-0.0)}
    assert bits(W.tree_sum([None, negative_zero, None])) == bits(negative_zero)  # −0 + 0 would be +0
    assert W.tree_sum([None, None]) is None
    assert W.tree_sum([]) is None


@given(rows, st.integers(0, 5))
@settings(deadline=None)
def test_sums_of_aligned_blocks_are_bit_identical(values, log_width):
    items, width = [item(v) for v in values], 2**log_width
    blocks = [W.tree_sum(items[start : start + width]) for start in range(0, len(items), width)]
    assert bits(W.tree_sum(blocks)) == bits(W.tree_sum(items))


@given(rows, st.lists(st.integers(0, 3), min_size=20, max_size=20))
@settings(deadline=None)
def test_sums_of_aligned_blocks_of_different_sizes_are_bit_identical(values, splits):
    items = [item(v) for v in values]

    def node(start, width, depth=0):
        """The sum of an aligned block, split further or not at the whim of `splits`."""
        if start >= len(items):
            return None
        if width == 1 or splits[(start + depth) % len(splits)] == 0:
            return W.tree_sum(items[start : start + width])
        half = width // 2
        return W.tree_sum([node(start, half, depth + 1), node(start + half, half, depth + 1)])

    assert bits(node(0, 64)) == bits(W.tree_sum(items))


@given(st.lists(floats, min_size=1, max_size=40))
@settings(deadline=None)
def test_stack_sum_is_bit_identical_to_tree_sum(values):
    items = [item(v) for v in values]
    stacked = {"w": torch.stack([i["w"] for i in items])}
    assert bits(W.stack_sum(stacked)) == bits(W.tree_sum(items))


def test_add_refuses_different_names():
    with pytest.raises(AssertionError, match="b"):
        W.add({"a": torch.ones(1)}, {"a": torch.ones(1), "b": torch.ones(1)})


def test_norm_is_over_all_tensors():
    weights = {"a": torch.tensor([3.0]), "b": torch.tensor([[4.0, 12.0]])}
    assert W.squared_norm(weights).item() == 169.0
    assert W.norm(weights).item() == 13.0
    assert W.norm({}).item() == 0.0


def test_squared_norm_is_bit_identical_for_any_order_of_names():
    weights = {str(i): torch.tensor([10.0 ** (i % 7 - 3)]) for i in range(50)}
    backwards = dict(reversed(weights.items()))
    assert torch.equal(W.squared_norm(weights), W.squared_norm(backwards))


def test_squared_norm_has_a_zero_gradient_at_zero():
    w = torch.zeros(3, requires_grad=True)
    W.squared_norm({"w": w}).backward()
    assert w.grad.tolist() == [0, 0, 0]


def test_scale_and_subtract():
    a, b = {"w": torch.tensor([1.0, 2.0])}, {"w": torch.tensor([0.5, 3.0])}
    assert W.scale(a, 2)["w"].tolist() == [2, 4]
    assert W.subtract(a, b)["w"].tolist() == [0.5, -1]


NAMES = ["encoder.0.weight", "encoder.0.bias", "head.weight"]


def test_select_names_keeps_the_order_and_drops_excluded_names():
    assert W.select_names(NAMES, ["head.*", "encoder.*"], ["*.bias"]) == ["encoder.0.weight", "head.weight"]
    assert W.select_names(NAMES, []) == []


@pytest.mark.parametrize(("include", "exclude"), [(["haed.*"], []), (["*"], ["haed.*"])])
def test_a_glob_without_a_match_names_the_nearest_tensor(include, exclude):
    with pytest.raises(ConfigError) as error:
        W.select_names(NAMES, include, exclude, where="phases.0.train")
    assert str(error.value) == "phases.0.train: 'haed.*' matches no tensor; nearest: 'head.weight'"


def test_sha256_covers_names_dtypes_shapes_and_bytes():
    weights = {"b": torch.tensor(3), "a": torch.tensor([[1.0, -2.0]])}
    text = b'["a", "float32", [1, 2]]\n' + bytes.fromhex("0000803f 000000c0")
    text += b'["b", "int64", []]\n' + (3).to_bytes(8, "little")
    assert W.sha256(weights) == hashlib.sha256(text).hexdigest()


def test_sha256_ignores_memory_layout_only():
    x = torch.arange(6.0).reshape(2, 3)
    assert W.sha256({"x": x.t()}) == W.sha256({"x": x.t().contiguous()})
    others = [{"x": x.reshape(3, 2)}, {"y": x}, {"x": x.double()}, {"x": x.int()}, {"x": x + 1}, {}]
    assert len({W.sha256(weights) for weights in [{"x": x}, *others]}) == 7
    assert W.sha256({"x": torch.tensor(0.0)}) != W.sha256({"x": torch.tensor(-0.0)})


def test_flatten_keeps_groups_slashes_in_names_and_empty_groups():
    state = {"m": {"extra/head/w": torch.ones(2)}, "empty": {}}
    flat = W.flatten(state)
    assert list(flat) == ["m/extra/head/w", "empty/"]
    back = W.unflatten(flat)
    assert back.keys() == state.keys()
    assert back["empty"] == {}
    assert torch.equal(back["m"]["extra/head/w"], torch.ones(2))


def every_dtype():
    stack = torch.arange(12.0).reshape(3, 4)
    tensors = {dtype: torch.tensor([0, 1, 1]).to(dtype) for dtype in W.DTYPES}
    weights = {str(dtype): t for dtype, t in tensors.items()}
    return (
        weights
        | {"z": torch.tensor(2**62 + 1), "row": stack[1], "tied": stack[1], "a": stack.t(), "none": torch.empty(0, 2)}
        | odd_strides()
    )


def odd_strides():
    one, none = torch.tensor(7.0).expand(1), torch.from_numpy(np.zeros((3, 0), np.float32)[:, ::-1].copy())
    return {"one": one, "none of three": none}


def test_a_safetensors_file_restores_bits_and_order_and_is_read_by_the_library(tmp_path):
    weights = every_dtype()
    file = io.BytesIO()
    W.write_safetensors(weights, file)
    (tmp_path / "w").write_bytes(file.getvalue())
    back = W.load_safetensors(tmp_path / "w")
    assert list(back) == list(weights)
    assert bits(back) == bits(weights)
    assert bits(library_load(file.getvalue())) == bits(weights)
    assert {t.shape for t in back.values()} == {t.shape for t in weights.values()}


@pytest.mark.parametrize("cut", [0, 7, 40, -1])
def test_a_truncated_safetensors_file_is_a_value_error(tmp_path, cut):
    file = io.BytesIO()
    W.write_safetensors(every_dtype(), file)
    (tmp_path / "w").write_bytes(file.getvalue()[:cut])
    with pytest.raises(ValueError, match="not a complete safetensors file"):
        W.load_safetensors(tmp_path / "w")


@pytest.mark.parametrize("dtype", list(W.DTYPES))
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
def test_from_raw_bytes_restores_the_tensor_without_a_copy(dtype, shape):
    tensor = torch.ones(shape).to(dtype)
    values = W.to_raw_bytes(tensor)
    values.setflags(write=False)
    again = W.from_raw_bytes(values, tensor.dtype, tuple(tensor.shape))
    assert bits({"w": again}) == bits({"w": tensor})
    assert again.shape == tensor.shape
    assert again.data_ptr() == values.ctypes.data or not again.numel()
