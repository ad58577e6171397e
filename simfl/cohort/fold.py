"""Sums that come out the same however the work is split: one binary tree over the canonical positions of a round."""

from __future__ import annotations

from simfl.protocol import Weights
from simfl.weights import add


class Fold:
    """A running `weights.tree_sum` that keeps at most one partial sum per level.

    Blocks are pushed in order; a block of 2^k positions starts at a multiple of 2^k, and only the last may be
    smaller. None is a block of empty positions.
    """

    def __init__(self, empty: int = 0) -> None:
        """`empty`: positions without a value before the first block."""
        self.blocks: list[tuple[int, Weights | None]] = []
        for _ in range(empty):
            self.push(None)

    def push(self, value: Weights | None, size: int = 1) -> None:
        """Add the sum of the next `size` positions."""
        while self.blocks and self.blocks[-1][0] == size:
            value, size = _sum(self.blocks.pop()[1], value), 2 * size
        self.blocks.append((size, value))

    def total(self) -> Weights | None:
        """The sum of all positions so far, or None."""
        total: Weights | None = None
        for _, value in reversed(self.blocks):
            total = _sum(value, total)
        return total


def _sum(left: Weights | None, right: Weights | None) -> Weights | None:
    if left is None or right is None:
        return right if left is None else left
    return add(left, right)
