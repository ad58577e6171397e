"""GPU kernels against torch's operations and keyed dropout."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from simfl.models import convolution, dropout, fused_attention
from simfl.models.call_context import ModelCall, call_context

pytestmark = pytest.mark.gpu
KEYS = (2**61 + 12345, 987654321987, 5)


@pytest.fixture(autouse=True)
def exact_products() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


def relative_error(given: Tensor, right: Tensor) -> float:
    """Norm of the difference over the norm."""
    return float((given.double() - right).norm().detach() / right.norm().detach())


@pytest.mark.parametrize(
    ("channels", "out", "side", "kernel", "stride", "padding"),
    [(32, 64, 30, 3, 1, 0), (3, 32, 32, 3, 1, 0), (5, 20, 17, 5, 2, 2), (3, 40, 32, 4, 4, 0)],
)
def test_a_fused_convolution_equals_each_clients_convolution(
    channels: int, out: int, side: int, kernel: int, stride: int, padding: int
) -> None:
    clients, batch = 3, 4
    draw = torch.Generator("cuda").manual_seed(0)
    x = torch.randn(clients * batch, channels, side, side, generator=draw, device="cuda", requires_grad=True)
    weight = torch.randn(clients, out, channels, kernel, kernel, generator=draw, device="cuda", requires_grad=True)
    bias = torch.randn(clients, out, generator=draw, device="cuda", requires_grad=True)
    window = (stride, stride), (padding, padding), (1, 1)
    y = convolution.convolve(x, weight, bias, *window)
    parts = zip(x.double().chunk(clients), weight.double(), bias.double(), strict=True)
    right = torch.cat([functional.conv2d(own, w, b, stride, padding) for own, w, b in parts])
    slope = torch.randn(y.shape, generator=draw, device="cuda")
    given = (y, *torch.autograd.grad(y, (x, weight, bias), slope))
    wanted = (right, *torch.autograd.grad(right, (x, weight, bias), slope.double()))
    assert max(relative_error(a, b) for a, b in zip(given, wanted, strict=True)) < 1e-6


def test_a_clients_fused_convolution_is_bit_identical_alone() -> None:
    x, weight = torch.randn(6, 8, 12, 12, device="cuda"), torch.randn(3, 16, 8, 3, 3, device="cuda")
    window = (1, 1), (0, 0), (1, 1)
    together = convolution.convolve(x, weight, None, *window)
    assert torch.equal(convolution.convolve(x[2:4], weight[1:2], None, *window), together[2:4])


@pytest.mark.parametrize(("groups", "count", "kind"), [(3, 100_001, torch.float32), (1, 4096, torch.bfloat16)])
def test_the_dropout_kernel_drops_the_positions_of_the_hash(groups: int, count: int, kind: torch.dtype) -> None:
    x = torch.randn(groups, count, device="cuda", dtype=kind, requires_grad=True)
    keys = torch.tensor(KEYS[:groups], device="cuda")
    with call_context(ModelCall(keys, groups)):
        y = dropout.keyed_dropout(x, 0.3, 9)
        keep, share = dropout.keyed_keep(keys if groups > 1 else keys[0], 9, count, 0.3)
    right = x * (keep.reshape(x.shape).to(kind) / share)
    assert torch.equal(y == 0, right == 0)
    assert relative_error(y, right.double()) < (1e-6 if kind == torch.float32 else 1e-2)
    slope = torch.randn_like(x)
    assert torch.equal(torch.autograd.grad(y, x, slope)[0] == 0, (keep.reshape(x.shape) == 0) | (slope == 0))


@pytest.mark.parametrize(
    ("kind", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)], ids=["float32", "bf16"]
)
@pytest.mark.parametrize(
    ("rows", "columns", "rate", "biases", "cut"),
    [(100, 200, 0.1, 1, None), (16, 16, 0.2, 2, None), (5, 80, 0.0, 6, None), (70, 70, 0.3, 2, (70, 96))],
)
def test_fused_attention_equals_attention(
    kind: torch.dtype, tolerance: float, rows: int, columns: int, rate: float, biases: int, cut: tuple[int, int] | None
) -> None:
    groups, batch, heads, depth = 2, 3, 4, 32
    sizes = (rows, columns, columns)
    q, k, v = (
        torch.randn(groups * batch, heads, n, depth, device="cuda", dtype=kind, requires_grad=True) for n in sizes
    )
    wide = torch.randn(biases, heads, rows, fused_attention.aligned(columns), device="cuda", requires_grad=True)
    bias = wide[..., :columns]
    mask = torch.zeros(groups * batch, 1, 1, columns, device="cuda")
    mask[..., -3:] = -1e9
    keys = torch.tensor(KEYS[:groups], device="cuda")
    shape = (batch, heads, rows, columns)
    with call_context(ModelCall(keys, groups, cut=cut)):
        out = fused_attention.attend(q, k, v, bias, mask, 0.125, rate, 7)
        keep, share = dropout.keyed_keep_at(keys, 7, shape, ModelCall(cut=cut).whole_shape(shape), rate)
    a, b, c, d = (t.detach().double().requires_grad_() for t in (q, k, v, bias))
    weights = (a @ b.transpose(2, 3) * 0.125 + d.repeat_interleave(len(q) // biases, 0) + mask).softmax(-1)
    right = (weights * keep.reshape(weights.shape).double() / share) @ c
    slope = torch.randn_like(out)
    given = (out, *torch.autograd.grad(out, (q, k, v, wide), slope))
    wanted = (right, *torch.autograd.grad(right, (a, b, c, d), slope.double()))
    given = (*given[:4], given[4][..., :columns])
    assert max(relative_error(x, y) for x, y in zip(given, wanted, strict=True)) < tolerance
