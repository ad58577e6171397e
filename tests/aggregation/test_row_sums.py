"""Rows times factors are summed on a GPU as they are anywhere, bit for bit."""

from __future__ import annotations

import pytest
import torch

from simfl.aggregation import row_sums
from simfl.weights import Weights, raw_bytes, stack_sum


def bits(weights: Weights) -> dict[str, bytes]:
    return {name: raw_bytes(t.cpu()).tobytes() for name, t in weights.items()}


@pytest.mark.parametrize("weighted", [False, True])
def test_without_a_kernel_it_is_the_product_and_the_sum(weighted: bool) -> None:
    rows = {"a": torch.randn(5, 3, 2), "count": torch.arange(5)[:, None]}
    factors = torch.rand(5) if weighted else None
    right = (
        rows
        if factors is None
        else {"a": rows["a"] * factors[:, None, None], "count": rows["count"] * factors[:, None]}
    )
    assert bits(row_sums.row_sums(rows, factors)) == bits(stack_sum(right))


@pytest.mark.gpu
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("n", [2, 3, 50, 64, 100, 250])
@pytest.mark.parametrize("clients_per_batch", [1, 37, 5000])
def test_the_kernel_has_the_bits_of_products_and_sums(n: int, clients_per_batch: int, weighted: bool) -> None:
    """Values of many sizes, so that any other order, and a product that is not rounded, shows."""
    assert row_sums._kernel() is not None
    draw = torch.Generator("cuda").manual_seed(n)
    sizes = 10.0 ** torch.randint(-4, 4, (n, 1), generator=draw, device="cuda")
    rows = torch.randn(n, clients_per_batch, generator=draw, device="cuda") * sizes
    rows[0] = -0.0
    factors = torch.rand(n, generator=draw, device="cuda") * 100 if weighted else None
    right = rows if factors is None else rows * factors[:, None]
    assert bits(row_sums.row_sums({"w": rows}, factors)) == bits(stack_sum({"w": right.cpu()}))
