"""Convolutions of several clients in one launch, each with its own weights: Triton kernels for a GPU.

cuDNN's grouped convolution takes the channels of all clients along one axis, so activations are transposed back and
forth, and it picks an algorithm by the number of clients. Here each program computes a tile of one client and reads
activations in place. On an H100 the second layer of a CIFAR10 network takes a third of the time, and a client's bits do
not depend on the clients it is grouped with. No atomics.

    y[g,b,o,p] = Σ_k x[g,b, window p at k] · w[g,o,k]        k = (channel, row, column) of the window
"""

from __future__ import annotations

import torch
from torch import Tensor

from simfl.models.base import AutogradContext, has_kernels, load_kernels

WEIGHT_SLICES = 8  # slices of the weight gradient's sum over examples and positions, so that few clients fill a GPU


def can_fuse(x: Tensor, weight: Tensor) -> bool:
    """Return whether the kernels apply to these activations and weights ([g, O, C, h, w])."""
    return x.dtype == weight.dtype == torch.float32 and has_kernels(x, "convolution_kernels")


def convolve(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
) -> Tensor:
    """Convolve `x` [g·B, C, H, W] with `weight` [g, O, C, h, w] and `bias` [g, O] to [g·B, O, H', W']."""
    out: Tensor = _FusedConvolution.apply(x, weight, bias, stride, padding, dilation)
    return out


class _FusedConvolution(torch.autograd.Function):
    """The convolution and both gradients, each one operator to tracing and compiling."""

    @staticmethod
    def forward(
        ctx: AutogradContext, x: Tensor, weight: Tensor, bias: Tensor | None, *window: tuple[int, int]
    ) -> Tensor:
        x, weight = x.contiguous(), weight.contiguous()
        ctx.save_for_backward(x, weight)
        ctx.window, ctx.biased = [*window[0], *window[1], *window[2]], bias is not None
        ctx.exact = torch.get_float32_matmul_precision() == "highest"
        out: Tensor = torch.ops.simfl.convolve(x, weight, bias, ctx.window, ctx.exact)
        return out

    @staticmethod
    def backward(ctx: AutogradContext, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        dy, groups = dy.contiguous(), len(weight)
        dx = dw = db = None
        if ctx.needs_input_grad[0]:
            size = [x.shape[2], x.shape[3]]
            dx = torch.ops.simfl.convolve_to_input(dy, weight, size, ctx.window, ctx.exact)
        if ctx.needs_input_grad[1]:
            dw = torch.ops.simfl.convolve_to_weight(x, dy, list(weight.shape), ctx.window, ctx.exact)
        if ctx.biased and ctx.needs_input_grad[2]:
            db = dy.unflatten(0, (groups, -1)).sum((1, 3, 4))
        return dx, dw, db, None, None, None


def _output_size(size: tuple[int, int], kernel: tuple[int, int], window: list[int]) -> tuple[int, int]:
    """Return height and width of the output. `window`: stride, padding and dilation, two values each."""
    sh, sw, ph, pw, dh, dw = window
    height = (size[0] + 2 * ph - dh * (kernel[0] - 1) - 1) // sh + 1
    return height, (size[1] + 2 * pw - dw * (kernel[1] - 1) - 1) // sw + 1


@torch.library.custom_op("simfl::convolve", mutates_args=())
def _convolve(x: Tensor, weight: Tensor, bias: Tensor | None, window: list[int], exact: bool) -> Tensor:
    """Return the convolution."""
    g, o, c, kh, kw = weight.shape
    batch, height, width = len(x) // g, x.shape[2], x.shape[3]
    oh, ow = _output_size((height, width), (kh, kw), window)
    y = x.new_empty((g * batch, o, oh, ow))
    positions, inner = batch * oh * ow, c * kh * kw
    rows, columns = 128, _tile(o)
    grid = (-(-positions // rows), -(-o // columns), g)
    load_kernels("convolution_kernels").forward[grid](
        x, weight, weight if bias is None else bias.contiguous(), y, c, height, width, o, oh, ow, positions, inner,
        kh, kw, *window, bias is not None, rows, columns, _inner_tile(inner), _products(exact),
        num_warps=4, num_stages=4,
    )  # fmt: skip
    return y


@_convolve.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor | None, window: list[int], exact: bool) -> Tensor:
    size = _output_size((x.shape[2], x.shape[3]), (weight.shape[3], weight.shape[4]), window)
    return x.new_empty((len(x), weight.shape[1], *size))


@torch.library.custom_op("simfl::convolve_to_input", mutates_args=())
def _convolve_to_input(dy: Tensor, weight: Tensor, size: list[int], window: list[int], exact: bool) -> Tensor:
    """Return the gradient of an input of this height and width."""
    g, o, c, kh, kw = weight.shape
    batch, (oh, ow) = len(dy) // g, dy.shape[2:]
    dx = dy.new_empty((g * batch, c, size[0], size[1]))
    transposed = weight.permute(0, 3, 4, 1, 2).contiguous()  # [g, h, w, O, C]: a program reads contiguous values
    positions, inner = batch * size[0] * size[1], o * kh * kw
    rows, columns = 256, _tile(c)
    grid = (-(-positions // rows), -(-c // columns), g)
    load_kernels("convolution_kernels").to_input[grid](
        dy, transposed, dx, c, size[0], size[1], o, oh, ow, positions, inner,
        kh, kw, *window, rows, columns, _inner_tile(inner), _products(exact), num_warps=4, num_stages=3,
    )  # fmt: skip
    return dx


@_convolve_to_input.register_fake
def _(dy: Tensor, weight: Tensor, size: list[int], window: list[int], exact: bool) -> Tensor:
    return dy.new_empty((len(dy), weight.shape[2], size[0], size[1]))


@torch.library.custom_op("simfl::convolve_to_weight", mutates_args=())
def _convolve_to_weight(x: Tensor, dy: Tensor, shape: list[int], window: list[int], exact: bool) -> Tensor:
    """Return the gradient of a weight of this shape."""
    g, o, c, kh, kw = shape
    batch, (height, width), (oh, ow) = len(x) // g, x.shape[2:], dy.shape[2:]
    positions, inner = batch * oh * ow, c * kh * kw
    parts = x.new_empty((WEIGHT_SLICES, g, o, inner))
    rows, columns = _tile(o), 128 if inner > 64 else 32
    grid = (-(-o // rows), -(-inner // columns), g * WEIGHT_SLICES)
    load_kernels("convolution_kernels").to_weight[grid](
        x, dy, parts, c, height, width, o, oh, ow, positions, inner, WEIGHT_SLICES,
        kh, kw, *window, rows, columns, 32, _products(exact), num_warps=8 if columns == 128 else 4, num_stages=3,
    )  # fmt: skip
    return parts.sum(0).reshape(shape)


@_convolve_to_weight.register_fake
def _(x: Tensor, dy: Tensor, shape: list[int], window: list[int], exact: bool) -> Tensor:
    return x.new_empty(shape)


def _tile(channels: int) -> int:
    """Return the channels of a tile: a power of two from 16, the smallest that tensor cores take, to 64."""
    return min(64, max(16, 1 << (channels - 1).bit_length()))


def _inner_tile(terms: int) -> int:
    """Return the terms of an inner product taken at a time."""
    return 16 if terms > 32 else 32


def _products(exact: bool) -> str:
    """Return the precision of products: TF32 keeps 10 bits of each factor, three of them all 23."""
    return "tf32x3" if exact else "tf32"
