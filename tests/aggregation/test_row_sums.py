"""Sums of rows times factors on a GPU are bit-identical to those on a CPU."""

from __future__ import annotations

import pytest
import torch

from simfl.aggregation import row_sums
from simfl.weights import Weights, stack_sum, to_raw_bytes


def bits(weights: Weights) -> dict[str, bytes]:
    return {name: to_raw_bytes(t.cpu()).tobytes() for name, t in weights.items()}


@pytest.mark.parametrize("weighted", [False, True])
def test_without_the_kernel_rows_are_multiplied_and_summed(weighted: bool) -> None:
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
def test_the_kernel_is_bit_identical_to_products_and_sums(n: int, clients_per_batch: int, weighted: bool) -> None:
    """Values differ in size, so that another order, or a product that is not rounded, changes the result."""
    assert row_sums._kernel() is not None
    draw = torch.Generator("cuda").manual_seed(n)
    sizes = 10.0 ** torch.randint(-4, 4, (n, 1), generator=draw, device="cuda")
    rows = torch.randn(n, clients_per_batch, generator=draw, device="cuda") * sizes
    rows[0] = -0.0
    factors = torch.rand(n, generator=draw, device="cuda") * 100 if weighted else None
    right = rows if factors is None else rows * factors[:, None]
    assert bits(row_sums.row_sums({"w": rows}, factors)) == bits(stack_sum({"w": right.cpu()}))
