"""Clipping of the updates of privacy units to a norm (Abadi et al. 2016).

An update with a value that is not finite counts as zero: whether a run fails must not depend on a single unit.

Units are stacked, [n, …] in every tensor, and clipped together: n norms, n factors, one product. No value is copied
from a GPU to its host.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from simfl.protocol import Parts, Weights
from simfl.weights import scale, stack_sum

MARGIN = 1 - 2.0**-22  # of the clip norm, so that rounding up in float32 does not exceed it
BUNDLE = 2**17  # values of a unit that are processed together, from several small tensors
CHUNK = {"cpu": 2**20}  # values of all units that are squared in float64 at a time: they fit into a cache
LARGE_CHUNK = 2**26  # the same on other devices: they fit into the memory of a GPU


@dataclass(frozen=True)
class Clipped:
    """The sum of clipped units."""

    total: Weights  # the sum, on a tree over the positions of the units
    norms: Tensor  # of each unit before clipping, float64 [n]; not finite for a unit that counts as zero
    others: Parts = field(default_factory=dict)  # sums of the parts other than the weights, see `simfl.privacy.parts`

    @property
    def num_not_finite(self) -> Tensor:
        """Number of units that count as zero, int64 []."""
        return (~torch.isfinite(self.norms)).sum()

    def without_units(self) -> Clipped:
        """Return the sum of no units: zeros of the same shapes."""
        zeros = {part: scale(tensors, 0.0) for part, tensors in {"": self.total, **self.others}.items()}
        return Clipped(zeros.pop(""), self.norms[:0], zeros)


def clipped(updates: Weights, limit: float | None, copies: Mapping[str, int] | None = None) -> Clipped:
    """Scale each update down to a Euclidean norm of at most `limit`, and sum the updates.

    Tensors are processed one after another, so that no second copy of all of them is made.

    Args:
        updates: n updates, [n, …] in every tensor. The norm is taken over all tensors.
        limit: The norm; None clips nothing.
        copies: Tensor -> number of further times that it counts in the norm, as in code that clips a state dict with
            tied weights.
    """
    lengths, total = norms(updates, copies), dict[str, Tensor]()
    scales = None if limit is None else factors(lengths, limit)[:, None]
    for names, rows in _bundles(updates):
        short = rows if scales is None else _finite_rows(rows * scales.to(rows.dtype), lengths)
        parts = stack_sum({"": short})[""].split([updates[name][0].numel() for name in names])
        total |= {name: part.view(updates[name].shape[1:]) for name, part in zip(names, parts, strict=True)}
    return Clipped({name: total[name] for name in updates}, lengths)


def norms(updates: Weights, copies: Mapping[str, int] | None = None) -> Tensor:
    """Return the Euclidean norm of each of n updates, float64 [n]; see `clipped` for `copies`."""
    squares = [_squares(rows) for _, rows in _bundles(updates)]
    squares += [
        times * _squares(updates[name].reshape(len(updates[name]), -1))
        for name, times in (copies or {}).items()
        if name in updates
    ]
    return stack_sum({"": torch.stack(squares)})[""].sqrt()  # a tree sum: its bits do not depend on n


def factors(lengths: Tensor, limit: float) -> Tensor:
    """Return the factors that scale updates with these norms to the limit, float32 [n]; 1 for norms within it."""
    return torch.where(lengths > limit, MARGIN * limit / lengths, 1.0).to(torch.float32)


def finite_or_zero(updates: Weights, lengths: Tensor) -> Weights:
    """Return updates [n, …] with zero in place of those whose norm is not finite."""
    shaped = {name: t.reshape(len(t), -1) for name, t in updates.items()}
    return {name: _finite_rows(rows, lengths).view(updates[name].shape) for name, rows in shaped.items()}


def _finite_rows(rows: Tensor, lengths: Tensor) -> Tensor:
    """Return rows [n, d] with zero in place of those whose norm is not finite; a GPU is not synchronized."""
    is_finite = torch.isfinite(lengths)
    if rows.device.type == "cpu" and bool(is_finite.all()):
        return rows
    return torch.where(is_finite[:, None], rows, torch.zeros((), dtype=rows.dtype, device=rows.device))


def _bundles(updates: Weights) -> Iterator[tuple[list[str], Tensor]]:
    """Yield names of consecutive small tensors with their values concatenated, [n, …]; large tensors one at a time."""
    names, size = list[str](), 0
    for name in updates:
        if names and (size + updates[name][0].numel() > BUNDLE or updates[name].dtype != updates[names[-1]].dtype):
            yield names, _bundle(updates, names)
            names, size = [], 0
        names, size = [*names, name], size + updates[name][0].numel()
    if names:
        yield names, _bundle(updates, names)


def _bundle(updates: Weights, names: list[str]) -> Tensor:
    rows = [updates[name].reshape(len(updates[name]), -1) for name in names]
    return rows[0] if len(rows) == 1 else torch.cat(rows, 1)


def _squares(rows: Tensor) -> Tensor:
    """Return the sum of squares of each row, float64 [n]."""
    num_rows = max(1, CHUNK.get(rows.device.type, LARGE_CHUNK) // max(1, rows.shape[1]))
    chunks = (chunk.to(torch.float64, copy=True) for chunk in rows.split(num_rows))
    return torch.cat([chunk.square_().sum(1) for chunk in chunks])
