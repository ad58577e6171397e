"""Means over squares are torch's, backwards too, of any size and under vmap."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from simfl.models.call_context import ModelCall, call_context
from simfl.models.cnn import Cnn
from simfl.models.pooling import MeanPool, pixelwise
from simfl.protocol import Task


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("size", [(24, 24), (5, 7), (2, 3)])
def test_the_mean_of_each_square_and_its_gradient(size: tuple[int, int], layout: torch.memory_format) -> None:
    x = torch.randn(3, 4, *size, generator=torch.Generator().manual_seed(1)).to(memory_format=layout).requires_grad_()
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


def test_both_layouts_give_the_same_means_to_the_bit() -> None:
    x = torch.randn(3, 4, 5, 6, generator=torch.Generator().manual_seed(1))
    apart = MeanPool()(x.to(memory_format=torch.channels_last))
    assert torch.equal(apart, MeanPool()(x))
    assert apart.stride(1) == 1


def test_pictures_lie_pixel_by_pixel_for_one_client_alone() -> None:
    x = torch.rand(2, 1, 5, 6)
    assert pixelwise(x).stride() == (30, 1, 6, 1)
    assert torch.equal(pixelwise(x), x)
    with call_context(ModelCall(groups=2)):
        assert pixelwise(x) is x


def test_the_network_is_the_same_function_of_either_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    task = Task(shape=(1, 12, 12), num_classes=5, seed=1)
    module = Cnn(channels=(4, 6), hidden=8, dropout=0.25).build(task).train()
    x = torch.rand(3, 1, 12, 12, generator=torch.Generator().manual_seed(1))
    with call_context(ModelCall(key=torch.tensor(7))):
        found = module(x).logits
        monkeypatch.setattr("simfl.models.cnn.pixelwise", lambda x: x)
        assert torch.allclose(module(x).logits, found, atol=1e-6)
