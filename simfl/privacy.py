"""Whose presence is hidden: the update of a unit (a provider, a client) is clipped as a whole before it is summed."""

from __future__ import annotations

from simfl.protocol import Weights
from simfl.weights import norm, scale


def clip_update(update: Weights, limit: float) -> Weights:
    """`update` scaled down, if need be, to the Euclidean norm `limit` over all its tensors (Abadi et al. 2016)."""
    return scale(update, (limit / norm(update).clamp_min(1e-30)).clamp_max(1.0))
