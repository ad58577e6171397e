"""`weights.stack_sum` of rows times factors on a GPU, by a kernel that reads each value once, bit-identical.

Level by level, and with the products computed before, all rows would pass through memory four times.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache

import torch
from torch import Tensor

from simfl.protocol import Weights
from simfl.weights import pack_small, stack_sum, unpack_small

MAX_ROWS, MAX_VALUES = 1024, 4096  # held at once by a program of the kernel

Kernel = Mapping[tuple[int], Callable[..., object]]  # a grid -> the launcher


def row_sums(stacked: Weights, factors: Tensor | None = None) -> Weights:
    """Return the sum over the first axis of tensors [n, …] on a GPU, each row times its factor (float32 [n])."""
    summed = {name: _sum(rows, factors)[None] for name, rows in pack_small(stacked).items()}
    like = {name: rows[:1] for name, rows in stacked.items()}
    return {name: t[0] for name, t in unpack_small(summed, like).items()}


def _sum(rows: Tensor, factors: Tensor | None) -> Tensor:
    fits = rows.dtype == torch.float32 and rows.is_contiguous() and 1 < len(rows) <= MAX_ROWS
    kernel = _kernel() if fits else None
    if kernel is None:
        weighted = rows if factors is None else rows * factors.reshape(-1, *[1] * (rows.dim() - 1))
        return stack_sum({"": weighted})[""]
    n, out = len(rows), rows.new_empty(rows.shape[1:])
    levels = (n - 1).bit_length()
    block = max(MAX_VALUES >> levels, 16)
    kernel[(-(-out.numel() // block),)](
        rows, rows if factors is None else factors, out, n, out.numel(),
        factors is not None, 1 << levels, levels, block, num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip
    return out


@cache
def _kernel() -> Kernel | None:
    """Return the kernel; None without Triton."""
    try:
        from simfl.aggregation.row_kernels import tree
    except ImportError:
        return None
    kernel: Kernel = tree
    return kernel
