"""A bias of pairs of positions that is the sum of two look-ups in small tables, as for distances across and down.

As a scatter, the gradient of the tables takes a GPU longer than the rest of a training step: millions of pairs add to a
few rows. Here it is a product of the pairs' gradients and one-hot rows, of one example at a time.

Shapes: n clients of b examples each, S positions, K rows of a table, H heads.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from simfl.models.base import AutogradContext
from simfl.models.call_context import current_call


def pair_bias(tables: tuple[Tensor, Tensor], buckets: tuple[Tensor, Tensor], dtype: torch.dtype) -> Tensor:
    """Return the bias of all pairs, [n, b, H, S, S].

    Args:
        tables: Two tables [n, K, H].
        buckets: The row of each pair in either table, int64 [n, b, S, S].
        dtype: Of the result.
    """
    if tables[0].is_cpu or current_call().under_vmap:
        return _look_up(*tables, *buckets, dtype)
    found: Tensor = _PairBias.apply(*tables, *buckets, dtype)
    return found


def _look_up(first: Tensor, second: Tensor, one: Tensor, other: Tensor, dtype: torch.dtype) -> Tensor:
    """Read one table of the sums of all pairs of rows, so that the bias of all positions is read once."""
    pairs = (first[:, :, None] + second[:, None]).flatten(1, 2)  # [n, K², H]
    start = torch.arange(len(pairs), device=one.device) * pairs.shape[1]
    index = one * second.shape[1] + other + start[:, None, None, None]
    found = functional.embedding(index, pairs.flatten(0, 1).to(dtype))
    return found.permute(0, 1, 4, 2, 3).contiguous()


class _PairBias(torch.autograd.Function):
    """The look-ups, with products as their gradient."""

    @staticmethod
    def forward(
        ctx: AutogradContext, first: Tensor, second: Tensor, one: Tensor, other: Tensor, dtype: torch.dtype
    ) -> Tensor:
        rows = first.shape[1], second.shape[1]
        ctx.save_for_backward(*(b.to(torch.uint8 if max(rows) <= 256 else torch.int64) for b in (one, other)))
        ctx.rows = rows
        return _look_up(first, second, one, other, dtype)

    @staticmethod
    def backward(ctx: AutogradContext, gradient: Tensor) -> tuple[Tensor | None, ...]:
        found = (_sum_by_row(gradient, own, k) for own, k in zip(ctx.saved_tensors, ctx.rows, strict=True))
        return (*found, None, None, None)


def _sum_by_row(gradient: Tensor, buckets: Tensor, rows: int) -> Tensor:
    """Sum gradients [n, b, H, S, S] over the pairs of each row of a table: [n, K, H] in float32."""
    numbers = torch.arange(rows, device=buckets.device, dtype=buckets.dtype)
    clients = []
    for client, own in zip(gradient, buckets, strict=True):
        total = torch.zeros((), device=gradient.device)
        for example, places in zip(client, own, strict=True):  # one at a time: the one-hot rows are large
            one_hot = (places[..., None] == numbers).to(example.dtype)  # [S, S, K]
            sums = torch.bmm(example.transpose(0, 1), one_hot)  # of each position, [S, H, K]
            total = total + sums.sum(0, dtype=torch.float32)
        clients.append(total.T)
    return torch.stack(clients)
