"""A unit's whole update is clipped before anything else happens to it (Abadi et al. 2016).

Units lie side by side, [n, …] in every tensor, and are clipped together: n norms, n factors, one product. Nothing asks
a GPU for a number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from simfl.protocol import Weights
from simfl.weights import stack_sum

SHORTER = 1 - 2.0**-22  # of the clip: what a float32 may round up stays within it
BUNDLE = 2**17  # values of a unit, of several small tensors together, that are worked on at a time
PIECE = {"cpu": 2**20}  # values of all units that are squared in float64 at a time: what a cache holds
LARGE_PIECE = 2**26  # elsewhere: what a GPU has room for


@dataclass(frozen=True)
class Clipped:
    """Units after the clip."""

    total: Weights  # their sum, on a tree over their places
    norms: Tensor  # [n], float64, of each before it was clipped


def clipped(updates: Weights, limit: float | None, copies: Mapping[str, int] | None = None) -> Clipped:
    """The sum of n `updates` [n, …], each scaled down, if need be, to the Euclidean norm `limit` over all its tensors.

    `copies`: further names under which a tensor counts in the norm, as in codes that clip a whole state dict. A limit
    of None leaves all as they are. Tensors are worked on one after the other, so that no second copy of all is made.
    """
    lengths, total = norms(updates, copies), dict[str, Tensor]()
    scales = None if limit is None else factors(lengths, limit)[:, None]
    for names, rows in _bundles(updates):
        short = rows if scales is None else rows * scales.to(rows.dtype)
        parts = stack_sum({"": short})[""].split([updates[name][0].numel() for name in names])
        total |= {name: part.view(updates[name].shape[1:]) for name, part in zip(names, parts, strict=True)}
    return Clipped({name: total[name] for name in updates}, lengths)


def norms(updates: Weights, copies: Mapping[str, int] | None = None) -> Tensor:
    """The Euclidean norm of each of n updates, float64 [n]; tensors with further names counted once for each."""
    squares = [_squares(rows) for _, rows in _bundles(updates)]
    squares += [
        times * _squares(updates[name].reshape(len(updates[name]), -1))
        for name, times in (copies or {}).items()
        if name in updates
    ]
    return stack_sum({"": torch.stack(squares)})[""].sqrt()  # its bits do not depend on n


def factors(lengths: Tensor, limit: float) -> Tensor:
    """What shortens updates of these norms to the limit and leaves others alone, float32 [n]."""
    return torch.where(lengths > limit, SHORTER * limit / lengths, 1.0).to(torch.float32)


def _bundles(updates: Weights) -> Iterator[tuple[list[str], Tensor]]:
    """Names of neighbouring tensors and their values side by side, [n, …]; a large tensor is a bundle of its own."""
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
    """The sum of squares of each row, float64 [n]."""
    at_once = max(1, PIECE.get(rows.device.type, LARGE_PIECE) // max(1, rows.shape[1]))
    pieces = (piece.to(torch.float64, copy=True) for piece in rows.split(at_once))
    return torch.cat([piece.square_().sum(1) for piece in pieces])
