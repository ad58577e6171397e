"""Attention in one kernel, with an additive bias, an additive mask and keyed dropout: what T5 needs, and torch has not.

Torch's fused attention takes a bias only as large as all scores, and drops by a generator of its own. Here the bias of
all examples is read where it lies, scores stay on the chip in both directions, and what is dropped follows from a key
and a place, as everywhere (`models.dropout`). After Dao et al. 2022, FlashAttention, and Dao 2024, FlashAttention-2.

Shapes: B examples (of g clients), H heads, L queries, S keys, D the depth of a head.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from simfl.models.call_context import current, part
from simfl.models.dropout import HALF, lift, mark

DEPTHS = (16, 32, 64, 128)
TILE, WARPS, STAGES = 64, 4, 2  # queries and keys at a time


def available(query: Tensor, bias: Tensor | None, mask: Tensor | None) -> bool:
    """Whether this attention can be computed here: on a GPU, where neither bias nor mask is trained."""
    trained = any(t is not None and t.requires_grad for t in (bias, mask))
    kinds = (torch.float32, torch.bfloat16, torch.float16)
    fits = query.is_cuda and query.dtype in kinds and query.shape[-1] in DEPTHS
    return fits and not trained and not current().stacked and _kernels() is not None


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    mask: Tensor | None,
    scale: float,
    dropout: float,
    layer: int,
) -> Tensor:
    """`query` [B, H, L, D], `key`, `value` [B, H, S, D], `bias` and `mask` of sizes that spread to [B, H, L, S].

    Gives [B, H, L, D]. Under a pass without a key nothing is dropped.
    """
    step, groups = current(), current().groups
    dropped = round(dropout * HALF) if step.key is not None else 0
    bias = None if bias is None else bias if bias.stride(-1) == 1 else bias.contiguous()
    seeds = step.keys.reshape(-1) if dropped else None
    first = part().before(query.shape[1] * query.shape[2] * key.shape[2] * len(query))
    numbers = [mark(layer), first, len(query) // groups, dropped]
    exact = torch.get_float32_matmul_precision() == "highest"
    out: Tensor = _Attention.apply(query, key, value, bias, mask, seeds, scale, numbers, exact)
    return out


class _Attention(torch.autograd.Function):
    """Forward and backward as operators that tracing and compiling see as one each."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> Tensor:
        query, key, value = _laid(query), _laid(key), _laid(value)
        bias, mask, seeds, scale, numbers, exact = rest
        out, lse = torch.ops.simfl.attend(query, key, value, bias, mask, seeds, scale, numbers, exact)
        ctx.save_for_backward(query, key, value, bias, mask, seeds, out, lse)
        ctx.settings = scale, numbers, exact
        return out

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> Any:
        query, key, value, bias, mask, seeds, out, lse = ctx.saved_tensors
        inner = (dout.to(torch.float32) * out.to(torch.float32)).sum(-1)
        slopes = torch.ops.simfl.attend_backward(
            query, key, value, bias, mask, seeds, _laid(dout), lse, inner, *ctx.settings
        )
        return (*slopes, None, None, None, None, None, None)


@torch.library.custom_op("simfl::attend", mutates_args=())
def _attend(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, mask: Tensor | None, seeds: Tensor | None,
    scale: float, numbers: list[int], exact: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    query, key, value = _laid(query), _laid(key), _laid(value)
    batch, heads, length, depth = query.shape
    out, lse = _results(query)
    tile, common = _tile(length), _common(query, key, bias, mask, scale, numbers)
    grid = (-(-length // tile), batch * heads)
    spread = _spread(query, key, bias, mask)
    _kernels().forward[grid](
        query, key, value, bias if bias is not None else query, mask if mask is not None else query,
        seeds if seeds is not None else query, out, lse, *common, *spread, *_steps(query, key, value, out),
        bias is not None, _masked(mask), numbers[3] > 0, depth, tile, _tile(key.shape[2]), _products(exact),
        num_warps=WARPS, num_stages=STAGES,
    )  # fmt: skip
    return out, lse


@_attend.register_fake
def _(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, mask: Tensor | None, seeds: Tensor | None,
    scale: float, numbers: list[int], exact: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    return _results(query)


@torch.library.custom_op("simfl::attend_backward", mutates_args=())
def _attend_backward(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, mask: Tensor | None, seeds: Tensor | None,
    dout: Tensor, lse: Tensor, inner: Tensor, scale: float, numbers: list[int], exact: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    query, key, value, dout = _laid(query), _laid(key), _laid(value), _laid(dout)
    batch, heads, length, depth = query.shape
    dq, dk, dv = torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
    rows, columns = _tile(length), _tile(key.shape[2])
    given = (
        query, key, value, bias if bias is not None else query, mask if mask is not None else query,
        seeds if seeds is not None else query, dout, lse, inner,
    )  # fmt: skip
    after = (
        *_common(query, key, bias, mask, scale, numbers), *_spread(query, key, bias, mask),
        *_steps(query, key, value, dout),
        bias is not None, _masked(mask), numbers[3] > 0, depth, rows, columns, _products(exact),
    )  # fmt: skip
    kernels = _kernels()
    kernels.to_queries[(-(-length // rows), batch * heads)](*given, dq, *after, num_warps=WARPS, num_stages=STAGES)
    kernels.to_keys[(-(-key.shape[2] // columns), batch * heads)](
        *given, dk, dv, *after, num_warps=WARPS, num_stages=STAGES
    )
    return dq, dk, dv


@_attend_backward.register_fake
def _(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, mask: Tensor | None, seeds: Tensor | None,
    dout: Tensor, lse: Tensor, inner: Tensor, scale: float, numbers: list[int], exact: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


def _laid(tensor: Tensor) -> Tensor:
    """With heads beside tokens in memory, as a layer's products lie, or before them; else copied."""
    return tensor if tensor.transpose(1, 2).is_contiguous() else tensor.contiguous()


def _results(query: Tensor) -> tuple[Tensor, Tensor]:
    """What the forward kernel writes, laid as the next layer reads it."""
    batch, heads, length, depth = query.shape
    out = query.new_empty((batch, length, heads, depth)).transpose(1, 2)
    return out, query.new_empty((batch, heads, length), dtype=torch.float32)


def _masked(mask: Tensor | None) -> int:
    """How a mask hides: nothing, keys alone, or of each query others."""
    return 0 if mask is None else 1 if mask.shape[-2] == 1 else 2


def _steps(*tensors: Tensor) -> list[int]:
    """From one example, head and row to the next of each tensor; gradients lie as what they are of."""
    return [step for t in tensors for step in t.stride()[:3]]


def _common(
    query: Tensor, key: Tensor, bias: Tensor | None, mask: Tensor | None, scale: float, numbers: list[int]
) -> tuple[Any, ...]:
    mark, first, examples, dropped = numbers
    return query.shape[1], query.shape[2], key.shape[2], scale, mark, first, examples, dropped, lift(dropped)


def _spread(query: Tensor, key: Tensor, bias: Tensor | None, mask: Tensor | None) -> list[int]:
    """Strides of bias and mask where they are spread to [B, H, L, S]: 0 where one value serves all."""
    size = (*query.shape[:3], key.shape[2])
    return [step for t in (bias, mask) for step in ((0, 0, 0, 0) if t is None else t.expand(size).stride())]


def _tile(length: int) -> int:
    """Rows in a tile: a power of two from 16, the least that tensor cores take."""
    return min(TILE, max(16, 1 << (length - 1).bit_length()))


def _products(exact: bool) -> str:
    """How float32 products are taken: TF32 keeps 10 bits of each factor, three of them all 23; halves are exact."""
    return "tf32x3" if exact else "tf32"


@cache
def _kernels() -> Any:
    """The kernels, where there is Triton."""
    try:
        from simfl.models import attention_kernels
    except ImportError:
        return None
    return attention_kernels
