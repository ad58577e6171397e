"""`weights.stack_sum` of rows times factors on a GPU: by a kernel that reads each value once, with the same bits.

Level by level, and with the products before, all rows would pass through memory four times.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from simfl.protocol import Weights
from simfl.weights import packed, stack_sum, unpacked

MOST, VALUES = 1024, 4096  # rows, and values, that a program of the kernel holds at once


def row_sums(stacked: Weights, factors: Tensor | None = None) -> Weights:
    """The sum over the first axis of tensors [n, …] on a GPU, each row times its factor (float32 [n])."""
    summed = {name: _sum(rows, factors)[None] for name, rows in packed(stacked).items()}
    return {name: t[0] for name, t in unpacked(summed, {name: rows[:1] for name, rows in stacked.items()}).items()}


def _sum(rows: Tensor, factors: Tensor | None) -> Tensor:
    fits = rows.dtype == torch.float32 and rows.is_contiguous() and 1 < len(rows) <= MOST
    if not fits or _kernel() is None:
        weighted = rows if factors is None else rows * factors.reshape(-1, *[1] * (rows.dim() - 1))
        return stack_sum({"": weighted})[""]
    n, out = len(rows), rows.new_empty(rows.shape[1:])
    levels = (n - 1).bit_length()
    block = max(VALUES >> levels, 16)
    _kernel()[(-(-out.numel() // block),)](
        rows, rows if factors is None else factors, out, n, out.numel(),
        factors is not None, 1 << levels, levels, block, num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip
    return out


@cache
def _kernel() -> Any:
    """Where there is Triton."""
    try:
        from simfl.aggregation.row_kernels import tree
    except ImportError:
        return None
    return tree
