"""Attention in one GPU kernel with an additive bias, an additive mask and keyed dropout, as T5 needs it.

torch's fused attention takes a bias only at the full size of the scores, and drops weights by a generator. Here the
bias shared by all examples is read in place, scores stay on the chip in both directions, and the dropped weights follow
from a key and a position, as everywhere (`models.dropout`). After FlashAttention (Dao et al. 2022) and FlashAttention-2
(Dao 2024).

Shapes: B examples (of g clients), H heads, L queries, S keys, D the depth of a head.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from simfl.models.base import AutogradContext, has_kernels, load_kernels
from simfl.models.call_context import current_batch_part, current_call
from simfl.models.dropout import LEVELS, keep_scale, layer_salt

DEPTHS = (16, 32, 64, 128)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
QUERY_TILE, KEY_TILE, WARPS, STAGES = 64, 64, 4, 2  # queries and keys at a time
ALIGNMENT = 16  # values at whose multiples rows of a bias begin


def can_fuse(query: Tensor, bias: Tensor | None, mask: Tensor | None) -> bool:
    """Return whether the kernel applies: on a GPU, without a gradient of the mask."""
    fits = query.dtype in DTYPES and query.shape[-1] in DEPTHS and (mask is None or not mask.requires_grad)
    if bias is not None:
        fits = fits and bias.dim() == 4 and len(query) % len(bias) == 0
    return fits and reads_in_place(query)


def reads_in_place(x: Tensor) -> bool:
    """Return whether attention over `x` may leave bias and mask apart, as the kernel reads both where they lie."""
    return not current_call().under_vmap and has_kernels(x, "attention_kernels")


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
    """Compute softmax(query · keyᵀ · scale + bias + mask) · value, with dropout on the weights.

    Nothing is dropped if the current model call has no key.

    Args:
        query: [B, H, L, D].
        key: [B, H, S, D].
        value: [B, H, S, D].
        bias: [n, H, L, S], or with one row or column for all; B / n examples in turn share one.
        mask: Additive; broadcasts to [B, H, L, S].
        scale: Factor on the scores.
        dropout: Rate.
        layer: Number of the layer, for its dropout.

    Returns:
        Outputs [B, H, L, D].
    """
    call = current_call()
    dropped = round(dropout * LEVELS) if call.dropout_key is not None else 0
    if bias is not None and bias.stride(-1) != 1:
        bias = bias.contiguous()
    seeds = call.group_keys(query.device).reshape(-1) if dropped else None
    whole = call.whole_shape((*query.shape[:3], key.shape[2]))
    first = current_batch_part().offset(math.prod(whole))
    exact = torch.get_float32_matmul_precision() == "highest"
    numbers = [layer_salt(layer), first, len(query) // call.num_groups, *whole[2:], dropped, int(exact)]
    out: Tensor = _FusedAttention.apply(query, key, value, bias, mask, seeds, scale, numbers)
    return out


class _FusedAttention(torch.autograd.Function):
    """Attention as one operator in each direction, to tracing and compiling."""

    @staticmethod
    def forward(ctx: AutogradContext, query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> Tensor:
        query, key, value = _as_heads(query), _as_heads(key), _as_heads(value)
        bias, mask, seeds, scale, numbers = rest
        out, lse = torch.ops.simfl.attend([query, key, value], bias, mask, seeds, scale, numbers)
        ctx.save_for_backward(query, key, value, bias, mask, seeds, out, lse)
        ctx.settings = scale, numbers
        return out

    @staticmethod
    def backward(ctx: AutogradContext, dout: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, bias, mask, seeds, out, lse = ctx.saved_tensors
        inner = (dout.to(torch.float32) * out.to(torch.float32)).sum(-1)
        trains = ctx.needs_input_grad[3]
        *gradients, scores = torch.ops.simfl.attend_backward(
            [query, key, value], bias, mask, seeds, [_as_heads(dout), lse, inner], *ctx.settings, trains
        )
        return (*gradients, _sum_to(scores, bias) if trains else None, None, None, None, None)


def _sum_to(scores: Tensor, bias: Tensor) -> Tensor:
    """Sum the gradient of scores [B, H, L, S] over the examples that share a bias, and where it has one value for all.

    Scores are kept in the dtype of the queries and summed in that of the bias. Computing them again for each bias takes
    two more products and draws, which is longer than writing and reading them.
    """
    found = scores.unflatten(0, (len(bias), -1)).sum(1, dtype=bias.dtype)
    return found if found.shape == bias.shape else found.sum_to_size(bias.shape)


@dataclass(frozen=True)
class _Launch:
    """Arguments that the forward and backward kernels share, in their order."""

    query: Tensor
    key: Tensor
    value: Tensor
    bias: Tensor | None
    mask: Tensor | None
    seeds: Tensor | None
    scale: float
    numbers: list[
        int
    ]  # layer's salt, positions before the batch part, examples of a client, whole size, dropped, exact

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The inputs; `query` takes the place of absent ones, whose pointer is not read."""
        optional = (self.query if t is None else t for t in (self.bias, self.mask, self.seeds))
        return self.query, self.key, self.value, *optional

    @property
    def scalars(self) -> tuple[float, ...]:
        """Sizes, the scale and the settings of dropout."""
        *places, dropped, _ = self.numbers
        heads, length = self.query.shape[1:3]
        return heads, length, self.key.shape[2], self.scale, *places, dropped, keep_scale(dropped)

    @property
    def bias_strides(self) -> tuple[int, ...]:
        """Examples that share a bias, and the strides of bias and mask: 0 where one value serves all."""
        size = (*self.query.shape[1:3], self.key.shape[2])
        rows = (len(self.query) if self.bias is None else len(self.bias)), len(self.query)
        pair = zip((self.bias, self.mask), rows, strict=True)
        steps = [(0, 0, 0, 0) if t is None else t.expand(count, *size).stride() for t, count in pair]
        return len(self.query) // rows[0], *steps[0], *steps[1]

    def strides(self, output: Tensor) -> tuple[int, ...]:
        """Strides over example, head and row of the inputs and the output; gradients have those of their tensors."""
        return tuple(step for t in (self.query, self.key, self.value, output) for step in t.stride()[:3])

    @property
    def switches(self) -> tuple[bool | int, ...]:
        """The kernels' constants: BIASED, MASKED (0, 1 by key alone, 2 by query too), DROPS, the depth and tiles."""
        masked = 0 if self.mask is None else 1 if self.mask.shape[-2] == 1 else 2
        depth = self.query.shape[-1]
        return self.bias is not None, masked, self.numbers[-2] > 0, depth, self.query_tile, self.key_tile

    @property
    def query_tile(self) -> int:
        """Queries that a program takes at a time."""
        return _tile(self.query.shape[2], QUERY_TILE)

    @property
    def key_tile(self) -> int:
        """Keys that a program takes at a time."""
        return _tile(self.key.shape[2], KEY_TILE)

    @property
    def products(self) -> str:
        """Precision of float32 products: TF32 keeps 10 bits of each factor, three of them all 23; halves are exact."""
        return "tf32x3" if self.numbers[-1] else "tf32"


# An operator's schema knows no dataclass, so query, key and value are a list, and so are dout, lse and inner.
@torch.library.custom_op("simfl::attend", mutates_args=())
def _attend(
    qkv: list[Tensor], bias: Tensor | None, mask: Tensor | None, seeds: Tensor | None, scale: float, numbers: list[int]
) -> tuple[Tensor, Tensor]:
    """Return the outputs, and the logarithm of the sum of each row's exponentials."""
    query, key, value = map(_as_heads, qkv)
    out, lse = _empty_results(query)
    launch = _Launch(query, key, value, bias, mask, seeds, scale, numbers)
    grid = (-(-query.shape[2] // launch.query_tile), query.shape[0] * query.shape[1])
    load_kernels("attention_kernels").forward[grid](
        *launch.tensors, out, lse, *launch.scalars, *launch.bias_strides, *launch.strides(out), *launch.switches,
        launch.products, num_warps=WARPS, num_stages=STAGES,
    )  # fmt: skip
    return out, lse


@_attend.register_fake
def _(
    qkv: list[Tensor], bias: Tensor | None, mask: Tensor | None, seeds: Tensor | None, scale: float, numbers: list[int]
) -> tuple[Tensor, Tensor]:
    return _empty_results(qkv[0])


@torch.library.custom_op("simfl::attend_backward", mutates_args=())
def _attend_backward(
    qkv: list[Tensor], bias: Tensor | None, mask: Tensor | None, seeds: Tensor | None, upstream: list[Tensor],
    scale: float, numbers: list[int], stores: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the gradients of query, key, value and, if `stores`, scores.

    `upstream` is dout, the forward's lse, and Σ out·dout.
    """
    query, key, value = map(_as_heads, qkv)
    dout, lse, inner = _as_heads(upstream[0]), upstream[1], upstream[2]
    dq, dk, dv = torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
    dscores = _empty_scores(query, key, stores)
    launch = _Launch(query, key, value, bias, mask, seeds, scale, numbers)
    given = (*launch.tensors, dout, lse, inner)
    settings = (*launch.scalars, *launch.bias_strides, *launch.strides(dout), *launch.switches, launch.products)
    kernels, pairs = load_kernels("attention_kernels"), query.shape[0] * query.shape[1]
    query_grid = (-(-query.shape[2] // launch.query_tile), pairs)
    kernels.to_queries[query_grid](
        *given, dq, dscores, *dscores.stride()[1:3], *settings, stores, num_warps=WARPS, num_stages=STAGES
    )  # fmt: skip
    key_grid = (-(-key.shape[2] // launch.key_tile), pairs)
    kernels.to_keys[key_grid](*given, dk, dv, *settings, num_warps=WARPS, num_stages=STAGES)
    return dq, dk, dv, dscores


@_attend_backward.register_fake
def _(
    qkv: list[Tensor], bias: Tensor | None, mask: Tensor | None, seeds: Tensor | None, upstream: list[Tensor],
    scale: float, numbers: list[int], stores: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    dq, dk, dv = (torch.empty_like(t) for t in qkv)
    return dq, dk, dv, _empty_scores(qkv[0], qkv[1], stores)


def _empty_scores(query: Tensor, key: Tensor, stores: bool) -> Tensor:
    """Allocate dS [B, H, L, S], with rows that begin at multiples of 16 values, which loads and stores like."""
    if not stores:
        return query.new_empty((0, 0, 0, 0))
    return query.new_empty((*query.shape[:3], aligned(key.shape[2])))[..., : key.shape[2]]


def aligned(length: int) -> int:
    """Return the next multiple of the values that a load takes at once."""
    return -(-length // ALIGNMENT) * ALIGNMENT


def _as_heads(tensor: Tensor) -> Tensor:
    """Return the tensor if tokens come before heads in memory, as a layer's products lie; else make it contiguous."""
    return tensor if tensor.transpose(1, 2).is_contiguous() else tensor.contiguous()


def _empty_results(query: Tensor) -> tuple[Tensor, Tensor]:
    """Allocate the outputs in the layout that the next layer reads, and one value a row."""
    batch, heads, length, depth = query.shape
    out = query.new_empty((batch, length, heads, depth)).transpose(1, 2)
    return out, query.new_empty((batch, heads, length), dtype=torch.float32)


def _tile(length: int, most: int) -> int:
    """Return the rows of a tile: a power of two from 16, the smallest that tensor cores take."""
    return min(most, max(16, 1 << (length - 1).bit_length()))
