"""Stochastic depth: rows dropped whole, alike for one client and for several side by side."""

from __future__ import annotations

import torch

from simfl.models.call_context import ModelCall, call_context
from simfl.models.drop_path import KeyedDropPath


def dropped(key: list[int], rows: int) -> torch.Tensor:
    layer = KeyedDropPath(0.25).train()
    layer.dropout_layer = 7
    step = ModelCall(key=torch.tensor(key if len(key) > 1 else key[0]), groups=len(key))
    with call_context(step):
        return layer(torch.ones(rows, 3, 2))


def test_a_row_is_zero_or_scaled_up() -> None:
    out = dropped([4], 400)
    assert torch.equal(out.amin((1, 2)), out.amax((1, 2)))
    assert set(out.unique().tolist()) == {0.0, torch.tensor(1 / 0.75).item()}
    assert 0.18 < (out[:, 0, 0] == 0).float().mean() < 0.32


def test_groups_drop_what_each_client_drops_alone() -> None:
    assert torch.equal(dropped([4, 5], 20), torch.cat([dropped([4], 10), dropped([5], 10)]))


def test_without_a_key_or_in_evaluation_nothing_is_dropped() -> None:
    layer, x = KeyedDropPath(0.9), torch.ones(8, 2)
    assert torch.equal(layer.train()(x), x)
    with call_context(ModelCall(key=torch.tensor(1))):
        assert torch.equal(layer.eval()(x), x)
