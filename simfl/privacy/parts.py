"""One Gaussian mechanism for uploads of several parts (McMahan et al. 2018, arXiv 1812.06210).

    S_p  clip norm of part p (that of the weights is `clip`)     w_p  its share of the budget, with a sum of 1

joint      One clip over everything that leaves: the vector of all x_p / S_p is clipped to the norm 1. The noise of part
           p is sigma·S_p.
separate   Each part is clipped to its own S_p (`share`), and its noise is sigma·S_p / √w_p. The vector of all
           x_p·√w_p / S_p has a norm of at most 1.

Either way a unit changes the vector of all parts, each divided by its noise, by at most 1/sigma, so that all parts
together are one release with the noise multiplier sigma.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from simfl.experiment import Privacy
from simfl.privacy.units import Clipped, clipped, finite_or_zero, norms
from simfl.protocol import Parts
from simfl.weights import flatten, scale, unflatten

WEIGHTS = "weights"


def noise_scales(privacy: Privacy) -> dict[str, float]:
    """Return the noise of a sum of each part over that of the weights in an upload without other parts.

    For the weights this is 1, or 1/√w with shares; for a part p it is S_p / S, over √w_p with shares.
    """
    shares = _shares(privacy)
    scales = {part: one.clip / (privacy.clip or 1.0) for part, one in privacy.parts.items()} | {WEIGHTS: 1.0}
    return {part: value / math.sqrt(shares.get(part, 1.0)) for part, value in scales.items()}


def clipped_parts(privacy: Privacy, updates: Parts, clip: float | None, copies: Mapping[str, int]) -> Clipped:
    """Clip the updates of n units, [n, …] in every tensor of every part, and sum them.

    A unit with a value that is not finite in any part counts as zero in all parts.

    Args:
        privacy: The settings.
        updates: The parts; those other than the weights have a clip in `privacy.parts`.
        clip: Clip norm of the weights; None clips nothing.
        copies: Tensor -> number of further times that it counts in the norm; see `units.clipped`.
    """
    own = {part: updates[part] for part in privacy.parts if part in updates}
    if clip is None or not own:
        found = clipped(updates[WEIGHTS], clip, copies)
        return (
            found if not own else Clipped(found.total, found.norms, {p: clipped(t, None).total for p, t in own.items()})
        )
    if not _shares(privacy):
        scales = noise_scales(privacy)
        scaled = {part: scale(tensors, 1.0 / scales[part]) for part, tensors in own.items()}
        joint = clipped(flatten({WEIGHTS: updates[WEIGHTS], **scaled}), clip, _named(copies))
        total = unflatten(joint.total)
        return Clipped(total[WEIGHTS], joint.norms, {part: scale(total[part], scales[part]) for part in own})
    lengths = norms(flatten({WEIGHTS: updates[WEIGHTS], **own}))
    weights = clipped(finite_or_zero(updates[WEIGHTS], lengths), clip, copies)
    others = {
        part: clipped(finite_or_zero(tensors, lengths), privacy.parts[part].clip).total for part, tensors in own.items()
    }
    return Clipped(weights.total, torch.where(torch.isfinite(lengths), weights.norms, lengths), others)


def _shares(privacy: Privacy) -> dict[str, float]:
    """Return the share of each part in the budget; empty with one clip over all parts."""
    given = {part: one.share for part, one in privacy.parts.items() if one.share is not None}
    return {**given, WEIGHTS: 1.0 - math.fsum(given.values())} if given else {}


def _named(copies: Mapping[str, int]) -> dict[str, int]:
    return {f"{WEIGHTS}/{name}": count for name, count in copies.items()}
