"""Measurements of noise: its scale in every tensor, its shape, what two draws have in common."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from simfl.privacy.noise import PIECE
from simfl.protocol import Weights

ERRORS = 6.0  # standard errors that a measurement may be off


@dataclass(frozen=True)
class Measured:
    """One thing that was held to what the accounts assume."""

    what: str
    value: float
    allowed: str
    holds: bool


def distance(a: Weights, b: Weights) -> float:
    """The Euclidean distance over all tensors, in float64."""
    return math.sqrt(sum(float((t.double() - b[name].double()).square().sum()) for name, t in a.items()))


def scales(what: str, noise: Weights, expected: float) -> Iterator[Measured]:
    """The standard deviation over all values, and the tensor that is furthest off."""
    whole = flat(noise)
    yield _scale(what, whole, expected)
    worst = max(noise, key=lambda name: _errors(flat({name: noise[name]}), expected))
    yield _scale(f"{what}, in {worst}", flat({worst: noise[worst]}), expected)
    excess = float(np.mean((whole / expected) ** 4)) - 3
    allowed = ERRORS * math.sqrt(96 / len(whole))
    yield Measured(
        f"{what}: fourth moment above a Gaussian's", excess, f"within ±{allowed:.2g}", abs(excess) <= allowed
    )


def _scale(what: str, values: np.ndarray, expected: float) -> Measured:
    found, off = float(np.sqrt(np.mean(values**2))), _errors(values, expected)
    return Measured(f"{what}: standard deviation", found, f"{expected:.4g}, off by {off:.1f} errors", off <= ERRORS)


def _errors(values: np.ndarray, expected: float) -> float:
    """How many standard errors the mean square is off that of Gaussian values (Wilson and Hilferty's cube root)."""
    spread = 2 / (9 * len(values))
    return abs(float(np.mean((values / expected) ** 2)) ** (1 / 3) - 1 + spread) / math.sqrt(spread)


def unrelated(drawn: dict[str, Weights]) -> Iterator[Measured]:
    """The largest correlation, in standard errors, of any two draws; in one draw, of two tensors of one shape, and of
    neighbouring pieces of one tensor."""
    pairs = [((a, b), flat(drawn[a]), flat(drawn[b])) for a, b in itertools.combinations(drawn, 2)]
    first = next(iter(drawn.values()))
    inside = [
        ((a, b), flat({a: first[a]}), flat({b: first[b]}))
        for a, b in itertools.combinations(first, 2)
        if first[a].shape == first[b].shape
    ]
    pieces = [
        ((f"{name}, piece {k}", f"piece {k + 1}"), x[: len(y)], y)
        for name, t in first.items()
        for k, (x, y) in enumerate(itertools.pairwise(flat({name: part}) for part in t.reshape(-1).split(PIECE)))
    ]
    for title, found in (("draws", pairs), ("tensors of one shape", inside), ("pieces of a tensor", pieces)):
        if found:
            names, x, y = max(found, key=lambda pair: _correlation(pair[1], pair[2]))
            value = _correlation(x, y)
            yield Measured(
                f"correlation of two {title} ({names[0]}; {names[1]}), in standard errors",
                value,
                f"at most {ERRORS + 1:g}",
                value <= ERRORS + 1,
            )


def _correlation(x: np.ndarray, y: np.ndarray) -> float:
    scale = float(np.sqrt(np.mean(x**2) * np.mean(y**2)))
    return abs(float(np.mean(x * y))) / scale * math.sqrt(len(x)) if scale else math.inf


def flat(tensors: Weights) -> np.ndarray:
    """All values, float64 [d]."""
    values: np.ndarray = torch.cat([t.double().reshape(-1) for t in tensors.values()]).numpy()
    return values
