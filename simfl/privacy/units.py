"""A unit's whole update is clipped before anything else happens to it (Abadi et al. 2016)."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from simfl.protocol import Weights
from simfl.weights import scale

SHORTER = 1 - 2.0**-22  # of the clip: what a float32 may round up stays within it


def clip_update(update: Weights, limit: float, copies: Mapping[str, int] | None = None) -> Weights:
    """`update` scaled down, if need be, to the Euclidean norm `limit` over all its tensors.

    `copies`: further names under which a tensor counts in the norm, as in codes that clip a whole state dict.
    """
    length = norm(update, copies)
    return scale(update, SHORTER * limit / length) if length > limit else update


def norm(update: Weights, copies: Mapping[str, int] | None = None) -> float:
    """The Euclidean norm in float64, tensors with further names counted once for each."""
    squares = [
        (1 + (copies or {}).get(name, 0)) * update[name].to(torch.float64).square().sum() for name in sorted(update)
    ]
    return float(torch.stack(squares).sum().sqrt()) if squares else 0.0
