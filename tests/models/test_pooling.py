"""2×2 mean pooling against torch's, with gradients, in both layouts and under vmap."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from simfl.models.call_context import ModelCall, call_context
from simfl.models.cnn import Cnn
from simfl.models.pooling import MeanPool, to_channels_last
from simfl.protocol import Task


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("size", [(24, 24), (5, 7), (2, 3)])
def test_mean_pool_and_its_gradient_equal_torchs(size: tuple[int, int], layout: torch.memory_format) -> None:
    x = torch.randn(3, 4, *size, generator=torch.Generator().manual_seed(1)).to(memory_format=layout).requires_grad_()
    pooled, right = MeanPool()(x), functional.avg_pool2d(x, 2)
    slope = torch.randn(right.shape, generator=torch.Generator().manual_seed(2))
    assert torch.allclose(pooled, right, atol=1e-6)
    assert torch.equal(*(torch.autograd.grad(y, x, slope)[0] for y in (pooled, right)))


def test_mean_pool_under_vmap_equals_each_client_alone() -> None:
    x = torch.randn(3, 2, 4, 6, 6, generator=torch.Generator().manual_seed(1))

    def slope_of(own: torch.Tensor) -> torch.Tensor:
        return torch.func.grad(lambda one: MeanPool()(one).square().sum())(own)

    together = torch.func.vmap(slope_of)(x)
    assert all(torch.equal(together[k], slope_of(x[k])) for k in range(3))


def test_both_layouts_give_bit_identical_means() -> None:
    x = torch.randn(3, 4, 5, 6, generator=torch.Generator().manual_seed(1))
    apart = MeanPool()(x.to(memory_format=torch.channels_last))
    assert torch.equal(apart, MeanPool()(x))
    assert apart.stride(1) == 1


def test_images_are_channels_last_for_a_single_client_alone() -> None:
    x = torch.rand(2, 1, 5, 6)
    assert to_channels_last(x).stride() == (30, 1, 6, 1)
    assert torch.equal(to_channels_last(x), x)
    with call_context(ModelCall(num_groups=2)):
        assert to_channels_last(x) is x


def test_the_cnn_gives_the_same_logits_in_either_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    task = Task(shape=(1, 12, 12), num_classes=5, seed=1)
    module = Cnn(channels=(4, 6), hidden=8, dropout=0.25).build(task).train()
    x = torch.rand(3, 1, 12, 12, generator=torch.Generator().manual_seed(1))
    with call_context(ModelCall(dropout_key=torch.tensor(7))):
        found = module(x).logits
        monkeypatch.setattr("simfl.models.cnn.to_channels_last", lambda x: x)
        assert torch.allclose(module(x).logits, found, atol=1e-6)
