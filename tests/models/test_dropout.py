"""Keyed dropout and drop path: the share kept, independent masks, equal masks in every execution mode."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from simfl.models import dropout
from simfl.models.call_context import ModelCall, call_context
from simfl.models.dropout import LEVELS, KeyedDropPath, keyed_bits, keyed_dropout, keyed_keep, layer_salt


def test_keyed_bits_are_uniform() -> None:
    bits = keyed_bits(torch.tensor(11), 3, 1 << 18)
    counts = torch.histc((bits.double() + 32768) // 256, 256, 0, 255)
    chi_square = ((counts - 1024) ** 2 / 1024).sum().item()
    assert 170 < chi_square < 350  # 255 degrees of freedom: mean 255, deviation 22.6


@pytest.mark.parametrize("first", [0, 3])
def test_bits_are_the_same_where_vmap_cannot_view_a_dtype(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = torch.arange(3)
    expected = torch.stack([keyed_bits(key, 2, 21, first) for key in keys])
    for has_rule in (dropout._vmap_views_dtypes(), False):
        monkeypatch.setattr(dropout, "_vmap_views_dtypes", lambda has_rule=has_rule: has_rule)
        with call_context(ModelCall(under_vmap=True)):
            assert torch.equal(torch.func.vmap(lambda key: keyed_bits(key, 2, 21, first))(keys), expected)


def test_masks_of_neighbouring_keys_layers_and_positions_are_uncorrelated() -> None:
    keys = torch.arange(40) * 2 + 1
    rows = torch.cat([keyed_bits(keys, layer, 20_000).double() for layer in range(5)])
    among = torch.corrcoef(rows).fill_diagonal_(0).abs().max().item()
    shifted = torch.corrcoef(torch.stack([rows[0, :-1], rows[0, 1:]]))[0, 1].abs().item()
    assert among < 0.04  # 19,900 pairs of deviation 0.007: the largest is about 0.03
    assert shifted < 0.03


def test_the_share_kept_matches_the_rate_and_scales_the_kept_values() -> None:
    keep, share = keyed_keep(torch.tensor(5), 1, 1_000_000, 0.1)
    assert abs(share - 0.9) < 1e-5
    assert abs(keep.double().mean().item() - share) < 0.0015  # five deviations
    with call_context(ModelCall(torch.tensor(5))):
        dropped = keyed_dropout(torch.ones(1000), 0.1, 1)
    assert torch.allclose(dropped.unique(), torch.tensor([0.0, 1.0 / share]))


def test_the_mask_of_a_client_is_equal_alone_in_a_group_and_under_vmap() -> None:
    keys, x = torch.tensor([7, 8 << 40, 9]), torch.ones(3 * 2, 5)
    with call_context(ModelCall(keys, num_groups=3)):
        together = keyed_dropout(x, 0.5, 2)

    def one(key: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        with call_context(ModelCall(key)):
            return keyed_dropout(rows, 0.5, 2)

    alone = torch.cat([one(keys[k], x[2 * k : 2 * k + 2]) for k in range(3)])
    assert torch.equal(together, alone)
    assert torch.equal(torch.vmap(one)(keys, x.reshape(3, 2, 5)).reshape(6, 5), alone)


def test_the_mask_of_the_first_examples_does_not_depend_on_how_many_follow() -> None:
    with call_context(ModelCall(torch.tensor(3))):
        assert torch.equal(keyed_dropout(torch.ones(8, 6), 0.5, 1)[:5], keyed_dropout(torch.ones(5, 6), 0.5, 1))


def test_outside_of_a_model_call_nothing_is_dropped() -> None:
    assert torch.equal(keyed_dropout(torch.ones(9), 0.9, 1), torch.ones(9))


def drop_path(key: list[int], rows: int) -> torch.Tensor:
    layer = KeyedDropPath(0.25).train()
    layer.dropout_layer = 7
    call = ModelCall(dropout_key=torch.tensor(key if len(key) > 1 else key[0]), num_groups=len(key))
    with call_context(call):
        return layer(torch.ones(rows, 3, 2))


def test_drop_path_zeroes_an_example_or_scales_it_up() -> None:
    out = drop_path([4], 400)
    assert torch.equal(out.amin((1, 2)), out.amax((1, 2)))
    assert set(out.unique().tolist()) == {0.0, torch.tensor(1 / 0.75).item()}
    assert 0.18 < (out[:, 0, 0] == 0).float().mean() < 0.32


def test_drop_path_drops_the_same_examples_in_groups_as_for_each_client_alone() -> None:
    assert torch.equal(drop_path([4, 5], 20), torch.cat([drop_path([4], 10), drop_path([5], 10)]))


def test_drop_path_is_the_identity_without_a_key_and_in_evaluation() -> None:
    layer, x = KeyedDropPath(0.9), torch.ones(8, 2)
    assert torch.equal(layer.train()(x), x)
    with call_context(ModelCall(dropout_key=torch.tensor(1))):
        assert torch.equal(layer.eval()(x), x)


class TritonInteger(np.ndarray):
    """Integers of fixed width with the methods of Triton's; shifts of unsigned ones are logical."""

    def to(self, kind: Any, bitcast: bool = False) -> TritonInteger:
        return np.asarray(self.view(kind) if bitcast else self.astype(kind)).view(TritonInteger)


def triton_integer(values: Any, kind: Any) -> TritonInteger:
    return np.asarray(values, kind).view(TritonInteger)


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module of the kernels as plain Python functions, with or without Triton."""
    language: Any = ModuleType("triton.language")
    language.__dict__.update(int32=np.int32, int64=np.int64, uint32=np.uint32, constexpr=int, where=np.where)
    triton: Any = SimpleNamespace(jit=lambda function: function, language=language)
    monkeypatch.setitem(sys.modules, "triton", triton)
    monkeypatch.setitem(sys.modules, "triton.language", language)
    path = Path(dropout.__file__).parent / "elementwise_kernels.py"
    spec = importlib.util.spec_from_file_location("plain_kernels", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("key", [0, 5, 8 << 40, (1 << 62) - 1, -(1 << 61) - 3])
def test_the_kernel_computes_the_same_hash_as_keyed_dropout(kernels: Any, key: int) -> None:
    """Runs the kernel's source on 32-bit integers; on a GPU `test_kernels` compares the dropped positions."""
    for layer, p, count in ((0, 0.1, 33), (7, 0.5, 1000), (200, 0.9, 64)):
        salt, high = kernels.hash_keys(triton_integer([key], np.int64), triton_integer([layer_salt(layer)], np.int32))
        kept = kernels.is_kept(triton_integer(np.arange(count), np.int32), salt, high, round(p * LEVELS))
        assert kept.tolist() == keyed_keep(torch.tensor(key), layer, count, p)[0].tolist()
