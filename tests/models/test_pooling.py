"""Means over squares are torch's, backwards too, of any size and under vmap."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from simfl.models.pooling import MeanPool


@pytest.mark.parametrize("size", [(24, 24), (5, 7), (2, 3)])
def test_the_mean_of_each_square_and_its_gradient(size: tuple[int, int]) -> None:
    x = torch.randn(3, 4, *size, generator=torch.Generator().manual_seed(1), requires_grad=True)
    pooled, right = MeanPool()(x), functional.avg_pool2d(x, 2)
    slope = torch.randn(right.shape, generator=torch.Generator().manual_seed(2))
    assert torch.allclose(pooled, right, atol=1e-6)
    assert torch.equal(*(torch.autograd.grad(y, x, slope)[0] for y in (pooled, right)))


def test_clients_stacked_by_vmap_get_what_each_gets_alone() -> None:
    x = torch.randn(3, 2, 4, 6, 6, generator=torch.Generator().manual_seed(1))

    def slope_of(own: torch.Tensor) -> torch.Tensor:
        return torch.func.grad(lambda one: MeanPool()(one).square().sum())(own)

    together = torch.func.vmap(slope_of)(x)
    assert all(torch.equal(together[k], slope_of(x[k])) for k in range(3))
