"""A unit's whole update is clipped before anything else happens to it (Abadi et al. 2016).

Units lie side by side, [n, …] in every tensor, and are clipped together: n norms, n factors, one product. Nothing asks
a GPU for a number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from simfl.protocol import Weights
from simfl.weights import stack_sum

SHORTER = 1 - 2.0**-22  # of the clip: what a float32 may round up stays within it
PIECE = {"cpu": 2**20}  # values that are squared in float64 at a time: what a cache holds
LARGE_PIECE = 2**26  # elsewhere: what a GPU has room for


@dataclass(frozen=True)
class Clipped:
    """Units after the clip."""

    total: Weights  # their sum, on a tree over their places
    norms: Tensor  # [n], float64, of each before it was clipped


def clipped(updates: Weights, limit: float | None, copies: Mapping[str, int] | None = None) -> Clipped:
    """The sum of n `updates` [n, …], each scaled down, if need be, to the Euclidean norm `limit` over all its tensors.

    `copies`: further names under which a tensor counts in the norm, as in codes that clip a whole state dict. A limit
    of None leaves all as they are. The product is taken tensor by tensor, so that no second copy of all units is made.
    """
    lengths = norms(updates, copies)
    if limit is None:
        return Clipped(stack_sum(updates), lengths)
    scales = factors(lengths, limit)
    return Clipped({name: stack_sum({name: rows_times(t, scales)})[name] for name, t in updates.items()}, lengths)


def rows_times(tensor: Tensor, scales: Tensor) -> Tensor:
    """Row k of a tensor [n, …] times number k of `scales` [n]."""
    return tensor * scales.to(tensor.dtype).reshape(-1, *[1] * (tensor.dim() - 1))


def norms(updates: Weights, copies: Mapping[str, int] | None = None) -> Tensor:
    """The Euclidean norm of each of n updates, float64 [n]; tensors with further names counted once for each."""
    squares = [(1 + (copies or {}).get(name, 0)) * _squares(updates[name]) for name in sorted(updates)]
    return stack_sum({"": torch.stack(squares)})[""].sqrt()  # its bits do not depend on n


def factors(lengths: Tensor, limit: float) -> Tensor:
    """What shortens updates of these norms to the limit and leaves others alone, float32 [n]."""
    return torch.where(lengths > limit, SHORTER * limit / lengths, 1.0).to(torch.float32)


def _squares(tensor: Tensor) -> Tensor:
    """The sum of squares of each row, float64 [n]."""
    rows = tensor.reshape(len(tensor), -1)
    at_once = max(1, PIECE.get(tensor.device.type, LARGE_PIECE) // max(1, rows.shape[1]))
    pieces = (piece.to(torch.float64, copy=True) for piece in rows.split(at_once))
    return torch.cat([piece.square_().sum(1) for piece in pieces])
