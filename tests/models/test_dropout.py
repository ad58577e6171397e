"""Keyed dropout: the share it keeps, the independence of its masks, the same mask in every way of training."""

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
from simfl.models.dropout import HALF, keyed_bits, keyed_dropout, keyed_keep, mark


def test_bits_are_uniform() -> None:
    bits = keyed_bits(torch.tensor(11), 3, 1 << 18)
    counts = torch.histc((bits.double() + 32768) // 256, 256, 0, 255)
    chi_square = ((counts - 1024) ** 2 / 1024).sum().item()
    assert 170 < chi_square < 350  # 255 degrees of freedom: mean 255, deviation 22.6


def test_masks_of_neighbouring_keys_layers_and_positions_are_unrelated() -> None:
    keys = torch.arange(40) * 2 + 1
    rows = torch.cat([keyed_bits(keys, layer, 20_000).double() for layer in range(5)])
    among = torch.corrcoef(rows).fill_diagonal_(0).abs().max().item()
    shifted = torch.corrcoef(torch.stack([rows[0, :-1], rows[0, 1:]]))[0, 1].abs().item()
    assert among < 0.04  # 19,900 pairs of deviation 0.007: the largest is about 0.03
    assert shifted < 0.03


def test_the_share_kept_is_what_is_said_and_scales_the_rest() -> None:
    keep, share = keyed_keep(torch.tensor(5), 1, 1_000_000, 0.1)
    assert abs(share - 0.9) < 1e-5
    assert abs(keep.double().mean().item() - share) < 0.0015  # five deviations
    with call_context(ModelCall(torch.tensor(5))):
        dropped = keyed_dropout(torch.ones(1000), 0.1, 1)
    assert torch.allclose(dropped.unique(), torch.tensor([0.0, 1.0 / share]))


def test_a_group_has_the_mask_of_its_client_alone_and_under_vmap() -> None:
    keys, x = torch.tensor([7, 8 << 40, 9]), torch.ones(3 * 2, 5)
    with call_context(ModelCall(keys, groups=3)):
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


def test_outside_a_pass_nothing_is_dropped() -> None:
    assert torch.equal(keyed_dropout(torch.ones(9), 0.9, 1), torch.ones(9))


class Word(np.ndarray):
    """Numbers as Triton's functions see them: of a fixed width, with logical shifts where they have no sign."""

    def to(self, kind: Any, bitcast: bool = False) -> Word:
        return self.view(kind) if bitcast else self.astype(kind)


def word(values: Any, kind: Any) -> Word:
    return np.asarray(values, kind).view(Word)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module of the kernel with its functions as plain ones, whether there is Triton or not."""
    language: Any = ModuleType("triton.language")
    language.__dict__.update(int32=np.int32, int64=np.int64, uint32=np.uint32, constexpr=int, where=np.where)
    triton: Any = SimpleNamespace(jit=lambda function: function, language=language)
    monkeypatch.setitem(sys.modules, "triton", triton)
    monkeypatch.setitem(sys.modules, "triton.language", language)
    spec = importlib.util.spec_from_file_location("plain_kernel", Path(dropout.__file__).parent / "dropout_kernel.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("key", [0, 5, 8 << 40, (1 << 62) - 1, -(1 << 61) - 3])
def test_what_the_kernel_writes_once_more_is_the_same_hash(kernel: Any, key: int) -> None:
    """Its text run over numbers of 32 bits; on a GPU `test_kernels` compares what it drops."""
    for layer, p, count in ((0, 0.1, 33), (7, 0.5, 1000), (200, 0.9, 64)):
        salt, high = kernel.salted(word([key], np.int64), word([mark(layer)], np.int32))
        kept = kernel.kept(word(np.arange(count), np.int32), salt, high, round(p * HALF))
        assert kept.tolist() == keyed_keep(torch.tensor(key), layer, count, p)[0].tolist()
