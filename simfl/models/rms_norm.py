"""T5's norm, x / √(mean x² + ε) · w (Zhang and Sennrich 2019), in one kernel a direction on a GPU.

Written as operations it takes six passes over its input in float32 forward, and twice as many backward. Under bf16 the
result is bf16 once, for all layers that read it, as each of them would make it.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from simfl.models.call_context import current

WIDEST = 8192  # values of a row that a program of the kernel holds


class RmsNorm(nn.Module):
    """Takes the place of transformers' `T5LayerNorm`, with its tensor."""

    def __init__(self, weight: nn.Parameter, epsilon: float) -> None:
        super().__init__()
        self.weight, self.variance_epsilon = weight, epsilon

    def forward(self, x: Tensor) -> Tensor:
        """[…, D] to the same, in float32 or as the pass computes."""
        if fused(x, self.weight):
            out: Tensor = _Norm.apply(x, self.weight, self.variance_epsilon, kind(x, self.weight) == torch.bfloat16)
            return out
        return (normal(x, self.variance_epsilon) * self.weight).to(kind(x, self.weight))


def install(module: nn.Module) -> nn.Module:
    """Replace every `T5LayerNorm` of `module` in place; returns `module`."""
    for name, child in list(module.named_modules()):
        if type(child).__name__ == "T5LayerNorm":
            parent = module.get_submodule(name.rpartition(".")[0])
            norm: Any = child
            setattr(parent, name.rpartition(".")[2], RmsNorm(norm.weight, norm.variance_epsilon))
    return module


def normal(x: Tensor, epsilon: float) -> Tensor:
    """x over the root of its mean square, float32."""
    full = x.to(torch.float32)
    return full * torch.rsqrt(full.pow(2).mean(-1, keepdim=True) + epsilon)


def fused(x: Tensor, weight: Tensor) -> bool:
    """Whether the kernel can compute it: on a GPU, with a weight that all share and nobody trains."""
    shared = weight.dim() == 1 and not weight.requires_grad and weight.dtype == torch.float32
    kinds = (torch.float32, torch.bfloat16)
    fits = x.is_cuda and x.dtype in kinds and x.shape[-1] <= WIDEST
    return fits and shared and not current().stacked and _kernels() is not None


def kind(x: Tensor, weight: Tensor) -> torch.dtype:
    """bfloat16 under a pass in bfloat16, else that of the weight."""
    return torch.bfloat16 if not x.is_meta and torch.is_autocast_enabled(x.device.type) else weight.dtype


class _Norm(torch.autograd.Function):
    """Forward and backward as operators that tracing and compiling see as one each."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, epsilon: float, half: bool) -> Tensor:
        x = x.contiguous()
        out, root = torch.ops.simfl.rms_norm(x, weight, epsilon, half)
        ctx.save_for_backward(x, weight, root)
        result: Tensor = out
        return result

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Any:
        return torch.ops.simfl.rms_norm_backward(slope.contiguous(), *ctx.saved_tensors), None, None, None


@torch.library.custom_op("simfl::rms_norm", mutates_args=())
def _rms_norm(x: Tensor, weight: Tensor, epsilon: float, half: bool) -> tuple[Tensor, Tensor]:
    """The norm, and 1 / √(mean x² + ε) of each row, float32."""
    out = torch.empty_like(x, dtype=torch.bfloat16 if half else torch.float32)
    root, width = x.new_empty(x.shape[:-1], dtype=torch.float32), x.shape[-1]
    _kernels().forward[(x.numel() // width,)](x, weight, out, root, width, epsilon, _block(width), num_warps=4)
    return out, root


@_rms_norm.register_fake
def _(x: Tensor, weight: Tensor, epsilon: float, half: bool) -> tuple[Tensor, Tensor]:
    out = torch.empty_like(x, dtype=torch.bfloat16 if half else torch.float32)
    return out, x.new_empty(x.shape[:-1], dtype=torch.float32)


@torch.library.custom_op("simfl::rms_norm_backward", mutates_args=())
def _rms_norm_backward(slope: Tensor, x: Tensor, weight: Tensor, root: Tensor) -> Tensor:
    dx, width = torch.empty_like(x), x.shape[-1]
    _kernels().backward[(x.numel() // width,)](slope, x, weight, root, dx, width, _block(width), num_warps=4)
    return dx


@_rms_norm_backward.register_fake
def _(slope: Tensor, x: Tensor, weight: Tensor, root: Tensor) -> Tensor:
    return torch.empty_like(x)


def _block(width: int) -> int:
    return 1 << (width - 1).bit_length()


@cache
def _kernels() -> Any:
    """The kernels, where there is Triton."""
    try:
        from simfl.models import rms_norm_kernels
    except ImportError:
        return None
    return rms_norm_kernels
