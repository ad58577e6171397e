"""Sums that come out the same however the work is split: one binary tree over the canonical positions of a round."""

from __future__ import annotations

from typing import NamedTuple

from simfl.protocol import Weights
from simfl.weights import add, add_into


class Block(NamedTuple):
    """The sum of `size` neighbouring positions; None if they are empty. Tensors that are `own` may be written to."""

    size: int
    value: Weights | None
    own: bool


class Fold:
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
