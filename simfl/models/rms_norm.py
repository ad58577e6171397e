"""T5's norm, x / √(mean x² + ε) · w (Zhang and Sennrich 2019), one GPU kernel in each direction.

As separate operations it makes six passes over its input in float32 forward, and twice as many backward. Under bf16
autocast the result is cast to bf16 once, for all layers that read it, as each of them would cast it.
"""

from __future__ import annotations

from typing import Protocol, cast

import torch
from torch import Tensor, nn

from simfl.models.base import AutogradContext, Network, has_kernels, load_kernels
from simfl.models.call_context import current_call

MAX_WIDTH = 8192  # values of a row that one program of the kernel holds
ROWS = 16  # whose share of a weight's gradient one program sums


class T5Norm(Protocol):
    """The tensor and the constant of transformers' `T5LayerNorm`."""

    weight: nn.Parameter
    variance_epsilon: float


class RmsNorm(nn.Module):
    """Replacement of transformers' `T5LayerNorm` that shares its tensor."""

    def __init__(self, weight: nn.Parameter, epsilon: float) -> None:
        super().__init__()
        self.weight, self.variance_epsilon = weight, epsilon

    def forward(self, x: Tensor) -> Tensor:
        """Normalize the last axis of […, D]; the result is bf16 under bf16 autocast, else float32."""
        if can_fuse(x, self.weight):
            return fused_norm(x, self.weight, self.variance_epsilon)
        return (normalize(x, self.variance_epsilon) * self.weight).to(output_dtype(x, self.weight))


def install_rms_norm(module: Network) -> Network:
    """Replace every `T5LayerNorm` of `module` in place, and return `module`."""
    for name, child in list(module.named_modules()):
        if type(child).__name__ == "T5LayerNorm":
            parent, _, last_name = name.rpartition(".")
            norm = cast(T5Norm, child)
            setattr(module.get_submodule(parent), last_name, RmsNorm(norm.weight, norm.variance_epsilon))
    return module


def normalize(x: Tensor, epsilon: float) -> Tensor:
    """Divide x by the root of its mean square along the last axis, in float32."""
    full = x.to(torch.float32)
    return full * torch.rsqrt(full.pow(2).mean(-1, keepdim=True) + epsilon)


def can_fuse(x: Tensor, weight: Tensor) -> bool:
    """Return whether the kernel applies: on a GPU, with weights in float32."""
    fits = x.dtype in (torch.float32, torch.bfloat16) and x.shape[-1] <= MAX_WIDTH and weight.dtype == torch.float32
    return fits and not current_call().under_vmap and has_kernels(x, "elementwise_kernels")


def fused_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Normalize by the kernel; `weight` [D] is that of all examples, or [n, D] of n clients."""
    half = output_dtype(x, weight) == torch.bfloat16
    out: Tensor = _FusedNorm.apply(x, weight, epsilon, half)
    return out


def output_dtype(x: Tensor, weight: Tensor) -> torch.dtype:
    """Return bfloat16 under autocast, else the dtype of the weight."""
    return torch.bfloat16 if not x.is_meta and torch.is_autocast_enabled(x.device.type) else weight.dtype


class _FusedNorm(torch.autograd.Function):
    """The norm as one operator in each direction, to tracing and compiling."""

    @staticmethod
    def forward(ctx: AutogradContext, x: Tensor, weight: Tensor, epsilon: float, half: bool) -> Tensor:
        x, weight = x.contiguous(), weight.contiguous()
        out, root = torch.ops.simfl.rms_norm(x, weight, epsilon, half)
        ctx.save_for_backward(x, weight, root)
        result: Tensor = out
        return result

    @staticmethod
    def backward(ctx: AutogradContext, gradient: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        x, weight, root = ctx.saved_tensors
        trains = ctx.needs_input_grad[1]
        dx, dw = torch.ops.simfl.rms_norm_backward(gradient.contiguous(), x, weight, root, trains)
        return dx, dw.sum(1).reshape(weight.shape) if trains else None, None, None


@torch.library.custom_op("simfl::rms_norm", mutates_args=())
def _rms_norm(x: Tensor, weight: Tensor, epsilon: float, half: bool) -> tuple[Tensor, Tensor]:
    """Return the norm, and 1 / √(mean x² + ε) of each row in float32."""
    out = torch.empty_like(x, dtype=torch.bfloat16 if half else torch.float32)
    root, width, rows = x.new_empty(x.shape[:-1], dtype=torch.float32), x.shape[-1], _rows(x, weight)
    kernel = load_kernels("elementwise_kernels").rms_norm_forward
    kernel[(x.numel() // width,)](x, weight, out, root, width, epsilon, rows, _block_size(width), num_warps=4)
    return out, root


@_rms_norm.register_fake
def _(x: Tensor, weight: Tensor, epsilon: float, half: bool) -> tuple[Tensor, Tensor]:
    out = torch.empty_like(x, dtype=torch.bfloat16 if half else torch.float32)
    return out, x.new_empty(x.shape[:-1], dtype=torch.float32)


@torch.library.custom_op("simfl::rms_norm_backward", mutates_args=())
def _rms_norm_backward(
    gradient: Tensor, x: Tensor, weight: Tensor, root: Tensor, trains: bool
) -> tuple[Tensor, Tensor]:
    """Return the gradient of the input, and that of each weight in parts [n, parts, D]; empty if it is frozen."""
    dx, dw, width, rows = torch.empty_like(x), _empty_parts(x, weight, trains), x.shape[-1], _rows(x, weight)
    count = ROWS if trains else 1
    grid = (-(-rows // count), weight.numel() // width)
    kernel = load_kernels("elementwise_kernels").rms_norm_backward
    kernel[grid](
        gradient, x, weight, root, dx, dw, width, rows, _block_size(width), count, trains, num_warps=4
    )  # fmt: skip
    return dx, dw


@_rms_norm_backward.register_fake
def _(gradient: Tensor, x: Tensor, weight: Tensor, root: Tensor, trains: bool) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), _empty_parts(x, weight, trains)


def _empty_parts(x: Tensor, weight: Tensor, trains: bool) -> Tensor:
    groups = weight.numel() // x.shape[-1]
    return weight.new_empty((groups, -(-_rows(x, weight) // ROWS), x.shape[-1]) if trains else (0,))


def _rows(x: Tensor, weight: Tensor) -> int:
    """Return how many rows share a weight."""
    return x.numel() // weight.numel()


def _block_size(width: int) -> int:
    """Return the next power of two."""
    return 1 << (width - 1).bit_length()
