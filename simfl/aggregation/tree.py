"""Sums that come out the same however the work is split: one binary tree over the canonical positions of a round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from simfl.aggregation.row_sums import row_sums
from simfl.protocol import Parts, Weights
from simfl.stacking import row, sent_to
from simfl.timing import timed
from simfl.weights import add, add_into, stack_sum


class Block(NamedTuple):
    """The sum of `size` neighbouring positions; None if they are empty. Tensors that are `own` may be written to."""

    size: int
    value: Weights | None
    own: bool


class TreeReducer:
    """A running `weights.tree_sum` that keeps at most one partial sum per level, each in the memory of the first.

    Blocks are pushed in order; a block of 2^k positions starts at a multiple of 2^k, and only the last may be
    smaller. None is a block of empty positions.
    """

    def __init__(self, empty: int = 0) -> None:
        """`empty`: positions without a value before the first block."""
        self.blocks: list[Block] = []
        for _ in range(empty):
            self.push(None)

    def push(self, value: Weights | None, size: int = 1, own: bool = False) -> None:
        """Add the sum of the next `size` positions; `own`: nobody else reads these tensors, they may be written to."""
        block = Block(size, value, own)
        while self.blocks and self.blocks[-1].size == block.size:
            block = _sum(self.blocks.pop(), block)
        self.blocks.append(block)

    def total(self) -> Weights | None:
        """The sum of all positions so far, or None."""
        total: Weights | None = None
        for _, value, _ in reversed(self.blocks):
            total = value if total is None else total if value is None else add(value, total)
        return total


class PartSums:
    """What visits send, part by part: the weighted sum over a round's positions, or each upload where it is gathered.

    Positions come in order, as in `TreeReducer`.
    """

    def __init__(self, reduce: Mapping[str, str]) -> None:
        """`reduce`: how each part becomes a mean, as the algorithm has it."""
        self.reduce, self.position = reduce, 0
        self.folds: dict[str, TreeReducer] = {}
        self.gathered: dict[str, list[Weights]] = {}

    def skip(self) -> None:
        """Nothing comes from the next position."""
        for fold in self.folds.values():
            fold.push(None)
        self.position += 1

    @timed("sum")
    def add(self, sent: Parts, weights: Sequence[float], width: int, spare: bool) -> None:
        """Uploads [n, …] of the next n positions; several fill an aligned block of `width`.

        `spare`: nobody else reads them, they may be written to.
        """
        n = len(weights)
        for part, tensors in sent.items():
            rule = self.reduce.get(part, "weighting")
            if rule == "gather":
                self.gathered.setdefault(part, []).extend(row(tensors, k) for k in range(n))
                continue
            plain = rule != "weighting" or all(weight == 1.0 for weight in weights)
            total = _weighted_sum(tensors, [] if plain else weights, spare)
            if part not in self.folds:
                self.folds[part] = TreeReducer(empty=self.position)
            self.folds[part].push(total, 1 if n == 1 else width, own=spare or n > 1 or not plain)
        self.position += n

    def totals(self) -> Parts:
        """The sum of each part."""
        totals = {part: fold.total() for part, fold in self.folds.items()}
        return {part: total for part, total in totals.items() if total is not None}


def _weighted_sum(tensors: Weights, weights: Sequence[float], spare: bool) -> Weights:
    """Of rows times weights, if any: multiplied in place, two thirds of the time on a CPU, where they are `spare`."""
    device = next((t.device for t in tensors.values()), torch.device("cpu"))
    if len(weights) == 1:
        return stack_sum({name: _times(t, weights[0], spare) for name, t in tensors.items()})
    factors = sent_to(device, np.array(weights, dtype=np.float32)) if weights else None
    if device.type == "cuda":
        return row_sums(tensors, factors)
    if factors is None:
        return stack_sum(tensors)
    return stack_sum({n: _times(t, factors.reshape(-1, *[1] * (t.dim() - 1)), spare) for n, t in tensors.items()})


def _times(tensor: Tensor, factor: float | Tensor, spare: bool) -> Tensor:
    fits = torch.result_type(tensor, factor) == tensor.dtype  # counts times a weight are no counts
    return tensor.mul_(factor) if spare and fits else tensor * factor


def _sum(left: Block, right: Block) -> Block:
    size = left.size + right.size
    if left.value is None or right.value is None:
        _, value, own = right if left.value is None else left
        return Block(size, value, own)
    if left.own:
        return Block(size, add_into(left.value, right.value), True)
    if right.own:
        return Block(size, add_into(right.value, left.value), True)
    return Block(size, add(left.value, right.value), True)
