"""T5's norm against transformers', and its kernel against torch's operations."""

from __future__ import annotations

import pytest
import torch
from transformers.models.t5.modeling_t5 import T5Config, T5ForConditionalGeneration, T5LayerNorm

from simfl.models.rms_norm import RmsNorm, _FusedNorm, fused_norm, install_rms_norm, normalize


def test_rms_norm_equals_transformers_norm() -> None:
    right = T5LayerNorm(24, eps=1e-6)
    right.weight.data = torch.randn(24, generator=torch.Generator().manual_seed(1))
    x = torch.randn(2, 5, 24, generator=torch.Generator().manual_seed(2))
    assert torch.equal(RmsNorm(right.weight, 1e-6)(x), right(x))


def test_under_autocast_the_norm_is_cast_to_bf16() -> None:
    norm = RmsNorm(torch.nn.Parameter(torch.ones(8)), 1e-6)
    x = torch.randn(3, 8, generator=torch.Generator().manual_seed(1))
    with torch.autocast("cpu", torch.bfloat16):
        assert norm(x).dtype == torch.bfloat16
        assert torch.equal(norm(x), normalize(x, 1e-6).to(torch.bfloat16))
    assert norm(x).dtype == torch.float32


def test_every_norm_of_a_t5_is_replaced_and_keeps_its_tensor() -> None:
    t5 = T5ForConditionalGeneration(T5Config(d_model=16, d_ff=16, d_kv=8, num_heads=2, num_layers=2, vocab_size=32))
    before = {name: id(parameter) for name, parameter in t5.named_parameters()}
    install_rms_norm(t5)
    assert {name: id(parameter) for name, parameter in t5.named_parameters()} == before
    assert not any(isinstance(module, T5LayerNorm) for module in t5.modules())


@pytest.mark.gpu
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_the_norm_kernel_equals_torchs_operations(kind: torch.dtype, half: bool) -> None:
    draw = torch.Generator("cuda").manual_seed(0)
    x = torch.randn(7, 100, generator=draw, device="cuda").to(kind).requires_grad_()
    weight = torch.randn(100, generator=draw, device="cuda")
    given = _FusedNorm.apply(x, weight, 1e-6, half)
    right = (normalize(x, 1e-6) * weight).to(torch.bfloat16 if half else torch.float32)
    slope = torch.randn(right.shape, generator=draw, device="cuda").to(right.dtype)
    close = 1e-5 if kind == torch.float32 and not half else 2e-2
    assert torch.allclose(given.float(), right.float(), rtol=close, atol=close)
    mine, own = (torch.autograd.grad(y, x, slope)[0].float() for y in (given, right))
    assert torch.allclose(mine, own, rtol=close, atol=10 * close)


@pytest.mark.gpu
@pytest.mark.parametrize("clients", [1, 3])
def test_the_norm_kernel_has_the_gradient_of_each_clients_weight(clients: int) -> None:
    draw = torch.Generator("cuda").manual_seed(0)
    x = torch.randn(6, 19, 100, generator=draw, device="cuda").requires_grad_()
    weight = torch.randn(clients, 100, generator=draw, device="cuda").requires_grad_()
    given = fused_norm(x, weight if clients > 1 else weight[0], 1e-6)
    right = normalize(x, 1e-6) * weight.repeat_interleave(6 // clients, 0)[:, None]
    slope = torch.randn(right.shape, generator=draw, device="cuda")
    pairs = zip(*(torch.autograd.grad(y, (x, weight), slope) for y in (given, right)), strict=True)
    assert torch.allclose(given, right, rtol=1e-5, atol=1e-5)
    assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-4) for a, b in pairs)
