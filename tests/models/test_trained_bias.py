"""Biases of attention whose gradient is a dense sum on a GPU, against look-ups, whose gradient is a scatter."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers import T5Config, T5ForConditionalGeneration
from transformers.models.t5.modeling_t5 import T5Attention

from simfl.models import pair_bias
from simfl.models.t5_reader import distance_bias, position_bias

HEADS = 3


def relative_error(given: Tensor, right: Tensor) -> float:
    """Norm of the difference over the norm."""
    return float((given.double() - right).norm() / right.norm())


@pytest.mark.parametrize("clients", [0, 2], ids=["one table", "a table for each client"])
@pytest.mark.parametrize(
    ("side", "queries", "keys", "past"),
    [("encoder", 141, 141, 0), ("encoder", 20, 150, 0), ("decoder", 9, 9, 0), ("decoder", 1, 8, 7)],
)
def test_a_bias_by_distance_equals_that_by_pairs(side: str, queries: int, keys: int, past: int, clients: int) -> None:
    t5 = T5ForConditionalGeneration(T5Config(d_model=8, d_ff=8, d_kv=4, num_heads=HEADS, num_layers=1, vocab_size=32))
    stack = getattr(t5, side)
    attention: T5Attention = stack.block[0].layer[0].SelfAttention
    draw = torch.Generator().manual_seed(0)
    rows = attention.relative_attention_num_buckets
    table = torch.randn(*([clients] if clients else []), rows, HEADS, generator=draw, requires_grad=True)
    attention.relative_attention_bias._parameters["weight"] = table  # as a model call swaps it
    given, right = distance_bias(attention, table, queries, keys, past), position_bias(stack, queries, keys, past)
    assert torch.equal(given, right)
    slope = torch.randn(right.shape, generator=draw)
    (mine,) = torch.autograd.grad(given, table, slope)
    attention.relative_attention_bias._parameters["weight"] = exact = table.detach().double().requires_grad_()
    (wanted,) = torch.autograd.grad(position_bias(stack, queries, keys, past), exact, slope.double())
    assert relative_error(mine, wanted) < 3e-7


@pytest.mark.parametrize("clients", [1, 2])
def test_the_gradient_of_a_bias_of_pairs_is_the_sum_by_row(clients: int) -> None:
    draw = torch.Generator().manual_seed(0)
    tables = tuple(torch.randn(clients, 32, HEADS, generator=draw, requires_grad=True) for _ in "ab")
    buckets = tuple(torch.randint(0, 32, (clients, 2, 25, 25), generator=draw) for _ in "ab")
    given = pair_bias._PairBias.apply(*tables, *buckets, torch.float32)
    assert torch.equal(given, pair_bias.pair_bias((tables[0], tables[1]), (buckets[0], buckets[1]), torch.float32))
    slope = torch.randn(given.shape, generator=draw)
    exact = tuple(t.detach().double().requires_grad_() for t in tables)
    right = pair_bias.pair_bias((exact[0], exact[1]), (buckets[0], buckets[1]), torch.float64)
    wanted = torch.autograd.grad(right, exact, slope.double())
    found = torch.autograd.grad(given, tables, slope)
    assert max(relative_error(a, b) for a, b in zip(found, wanted, strict=True)) < 3e-7
