"""Sums that are bit-identical however the work is divided: one binary tree over the canonical positions of a round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from simfl.aggregation.row_sums import row_sums
from simfl.protocol import Parts, Weights
from simfl.stacking import take_row, to_device
from simfl.timing import timed
from simfl.weights import HALF, add, add_into, stack_sum


class _Block(NamedTuple):
    """The sum of `size` neighbouring positions; None if they are empty. `owned`: its tensors may be written to."""

    size: int
    value: Weights | None
    owned: bool


STACK_WEIGHTS = "weights of the clients"  # float64 [n], among the tensors of a stacked part


def concatenated(blocks: Sequence[Weights]) -> Weights:
    """Join stacked tensors [n, …] of neighbouring positions. Grouping changes no bit, as nothing is added."""
    return {name: torch.cat([block[name] for block in blocks]) for name in blocks[0]}


class TreeReducer:
    """A running `weights.tree_sum` that keeps at most one partial sum per level.

    Blocks are pushed in order; a block of 2^k positions starts at a multiple of 2^k, and only the last one may be
    smaller. None is a block of empty positions.
    """

    def __init__(self, num_empty: int = 0) -> None:
        """Start with `num_empty` positions without a value."""
        self.blocks: list[_Block] = []
        for _ in range(num_empty):
            self.push(None)

    def push(self, value: Weights | None, size: int = 1, owned: bool = False) -> None:
        """Add the sum of the next `size` positions; `owned`: its tensors have no other reader and may be written to."""
        block = _Block(size, value, owned)
        while self.blocks and self.blocks[-1].size == block.size:
            block = _merge(self.blocks.pop(), block)
        self.blocks.append(block)

    def total(self) -> Weights | None:
        """Return the sum of all positions so far; None if all are empty."""
        total: Weights | None = None
        for _, value, _ in reversed(self.blocks):
            total = value if total is None else total if value is None else add(value, total)
        return total

    def take_total(self) -> tuple[Weights | None, bool]:
        """Return the sum of all positions, and whether its tensors are owned; nothing is kept, so call it once."""
        total = _Block(0, None, False)
        while self.blocks:
            total = _merge(self.blocks.pop(), total)
        return total.value, total.owned


class PartSums:
    """Sums of uploads, part by part: the weighted sum over a round's positions, or all uploads of a gathered part.

    Positions come in order, as in `TreeReducer`.
    """

    def __init__(self, reduce: Mapping[str, str]) -> None:
        """Start without uploads.

        `reduce`: the algorithm's rule for each part, or `stack` for tensors that are kept side by side with their
        weights; parts without a rule are weighted.
        """
        self.reduce, self.position = reduce, 0
        self.reducers: dict[str, TreeReducer] = {}
        self.gathered: dict[str, list[Weights]] = {}
        self.dtypes: dict[str, dict[str, torch.dtype]] = {}  # of tensors in half precision, which are summed in float32

    def skip(self) -> None:
        """Leave the next position empty."""
        for reducer in self.reducers.values():
            reducer.push(None)
        self.position += 1

    @timed("sum")
    def add(self, sent: Parts, weights: Sequence[float], block_size: int, owned: bool) -> None:
        """Add the uploads [n, …] of the next n positions; several of them fill an aligned block of `block_size`.

        `owned`: the tensors have no other reader and may be written to.
        """
        n = len(weights)
        for part, tensors in sent.items():
            rule = self.reduce.get(part, "weighting")
            if rule == "gather":
                self.gathered.setdefault(part, []).extend(take_row(tensors, k) for k in range(n))
                continue
            if rule == "stack":
                device = next(t.device for t in tensors.values())  # that of all tensors, as sums are checked together
                own = torch.tensor(weights, dtype=torch.float64, device=device)
                self.gathered.setdefault(part, []).append({**tensors, STACK_WEIGHTS: own})
                continue
            unweighted = rule != "weighting" or all(weight == 1.0 for weight in weights)
            half = {name: t.dtype for name, t in tensors.items() if t.dtype in HALF}
            if half:
                self.dtypes[part] = half
                tensors = {name: t.float() if name in half else t for name, t in tensors.items()}
            total = _weighted_sum(tensors, [] if unweighted else weights, owned)
            if part not in self.reducers:
                self.reducers[part] = TreeReducer(self.position)
            self.reducers[part].push(total, 1 if n == 1 else block_size, owned or n > 1 or not unweighted)
        self.position += n

    def totals(self) -> tuple[Parts, frozenset[str]]:
        """Return the sum of each part, and the parts whose sums are owned; call it once.

        Stacked parts become one tensor each.
        """
        for part, blocks in self.gathered.items():
            if self.reduce.get(part) == "stack" and len(blocks) > 1:
                self.gathered[part] = [concatenated(blocks)]
        totals = {part: reducer.take_total() for part, reducer in self.reducers.items()}
        found = {part: total for part, (total, _) in totals.items() if total is not None}
        return found, frozenset(part for part in found if totals[part][1])


def _weighted_sum(tensors: Weights, weights: Sequence[float], owned: bool) -> Weights:
    """Sum rows times weights, if any. `owned` rows are scaled in place: two thirds of the time on a CPU."""
    device = next((t.device for t in tensors.values()), torch.device("cpu"))
    if len(weights) == 1:
        return stack_sum({name: _scale(t, weights[0], owned) for name, t in tensors.items()})
    factors = to_device(device, np.array(weights, dtype=np.float32)) if weights else None
    if device.type == "cuda":
        return row_sums(tensors, factors)
    if factors is None:
        return stack_sum(tensors)
    return stack_sum({n: _scale(t, factors.reshape(-1, *[1] * (t.dim() - 1)), owned) for n, t in tensors.items()})


def _scale(tensor: Tensor, factor: float | Tensor, owned: bool) -> Tensor:
    keeps_dtype = torch.result_type(tensor, factor) == tensor.dtype  # an integer count times a weight is a float
    return tensor.mul_(factor) if owned and keeps_dtype else tensor * factor


def _merge(left: _Block, right: _Block) -> _Block:
    size = left.size + right.size
    if left.value is None or right.value is None:
        _, value, owned = right if left.value is None else left
        return _Block(size, value, owned)
    if left.owned:
        return _Block(size, add_into(left.value, right.value), True)
    if right.owned:
        return _Block(size, add_into(right.value, left.value), True)
    return _Block(size, add(left.value, right.value), True)
