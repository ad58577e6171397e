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

from simfl.models.dropout import HALF, salted
from simfl.passing import current, part

DEPTHS = (16, 32, 64, 128)
TILE = 64  # queries and keys at a time


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
    if dropped:
        salts, highs = salted(step.keys.reshape(-1), layer)
    else:
        salts = highs = torch.zeros(1, dtype=torch.int32, device=query.device)
    first = part().before(query.shape[1] * query.shape[2] * key.shape[2] * len(query))
    numbers = [first, len(query) // groups, dropped]
    exact = torch.get_float32_matmul_precision() == "highest"
    out: Tensor = _Attention.apply(query, key, value, bias, mask, salts, highs, scale, numbers, exact)
    return out


class _Attention(torch.autograd.Function):
    """Forward and backward as operators that tracing and compiling see as one each."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> Tensor:
        query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
        bias, mask, salts, highs, scale, numbers, exact = rest
        out, lse = torch.ops.simfl.attend(query, key, value, bias, mask, salts, highs, scale, numbers, exact)
        ctx.save_for_backward(query, key, value, bias, mask, salts, highs, out, lse)
        ctx.settings = scale, numbers, exact
        return out

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> Any:
        query, key, value, bias, mask, salts, highs, out, lse = ctx.saved_tensors
        inner = (dout.to(torch.float32) * out.to(torch.float32)).sum(-1)
        slopes = torch.ops.simfl.attend_backward(
            query, key, value, bias, mask, salts, highs, dout.contiguous(), lse, inner, *ctx.settings
        )
        return (*slopes, None, None, None, None, None, None, None)


@torch.library.custom_op("simfl::attend", mutates_args=())
def _attend(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, mask: Tensor | None, salts: Tensor, highs: Tensor,
    scale: float, numbers: list[int], exact: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    batch, heads, length, depth = query.shape
    out, lse = torch.empty_like(query), query.new_empty((batch, heads, length), dtype=torch.float32)
    tile, common = _tile(length), _common(query, key, bias, mask, scale, numbers)
    grid = (-(-length // tile), batch * heads)
    spread = _spread(query, key, bias, mask)
    _kernels().forward[grid](
        query, key, value, bias if bias is not None else query, mask if mask is not None else query, salts, highs,
        out, lse, *common, *spread, bias is not None, mask is not None, numbers[2] > 0,
        depth, tile, _tile(key.shape[2]), _products(exact), num_warps=4, num_stages=2,
    )  # fmt: skip
    return out, lse


@_attend.register_fake
def _(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, mask: Tensor | None, salts: Tensor, highs: Tensor,
    scale: float, numbers: list[int], exact: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    return torch.empty_like(query), query.new_empty(query.shape[:3], dtype=torch.float32)


@torch.library.custom_op("simfl::attend_backward", mutates_args=())
def _attend_backward(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, mask: Tensor | None, salts: Tensor, highs: Tensor,
    dout: Tensor, lse: Tensor, inner: Tensor, scale: float, numbers: list[int], exact: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    batch, heads, length, depth = query.shape
    dq, dk, dv = torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
    rows, columns = _tile(length), _tile(key.shape[2])
    given = (
        query, key, value, bias if bias is not None else query, mask if mask is not None else query, salts, highs,
        dout, lse, inner,
    )  # fmt: skip
    after = (
        *_common(query, key, bias, mask, scale, numbers), *_spread(query, key, bias, mask),
        bias is not None, mask is not None, numbers[2] > 0, depth, rows, columns, _products(exact),
    )  # fmt: skip
    kernels = _kernels()
    kernels.to_queries[(-(-length // rows), batch * heads)](*given, dq, *after, num_warps=4, num_stages=2)
    kernels.to_keys[(-(-key.shape[2] // columns), batch * heads)](*given, dk, dv, *after, num_warps=4, num_stages=2)
    return dq, dk, dv


@_attend_backward.register_fake
def _(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, mask: Tensor | None, salts: Tensor, highs: Tensor,
    dout: Tensor, lse: Tensor, inner: Tensor, scale: float, numbers: list[int], exact: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


def _common(
    query: Tensor, key: Tensor, bias: Tensor | None, mask: Tensor | None, scale: float, numbers: list[int]
) -> tuple[Any, ...]:
    first, examples, dropped = numbers
    return query.shape[1], query.shape[2], key.shape[2], scale, first, examples, dropped, 1.0 - dropped / HALF


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
