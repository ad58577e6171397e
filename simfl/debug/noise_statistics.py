"""Statistical tests of noise: its scale in every tensor, its shape, and the correlation of any two draws."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from simfl.privacy.noise import BLOCK
from simfl.protocol import Weights

MAX_ERRORS = 6.0  # standard errors by which a measurement may differ


@dataclass(frozen=True)
class Measurement:
    """A measured value, compared with what privacy accounting assumes."""

    what: str
    value: float
    allowed: str
    holds: bool


def distance(a: Weights, b: Weights) -> float:
    """Return the Euclidean distance over all tensors, in float64."""
    return math.sqrt(sum(float((t.double() - b[name].double()).square().sum()) for name, t in a.items()))


def check_scale(what: str, noise: Weights, expected: float) -> Iterator[Measurement]:
    """Test the standard deviation of all values and of the worst tensor, and the fourth moment of all values.

    Args:
        what: The name of the noise.
        noise: The noise in each tensor.
        expected: The standard deviation that accounting assumes.
    """
    values = flattened(noise)
    yield _test_deviation(what, values, expected)
    worst = max(noise, key=lambda name: _num_errors(flattened({name: noise[name]}), expected))
    yield _test_deviation(f"{what}, in {worst}", flattened({worst: noise[worst]}), expected)
    excess = float(np.mean((values / expected) ** 4)) - 3
    allowed = MAX_ERRORS * math.sqrt(96 / len(values))
    yield Measurement(
        f"{what}: fourth moment minus that of a Gaussian", excess, f"within ±{allowed:.2g}", abs(excess) <= allowed
    )


def check_independence(draws: dict[str, Weights]) -> Iterator[Measurement]:
    """Test the largest correlation of any two draws and, within the first draw, of tensors and blocks.

    Within a draw, tensors of one shape are compared with each other, and each block of a tensor with the next one.
    Correlations are in standard errors.
    """
    first = next(iter(draws.values()))
    pairs = [(f"{a}; {b}", flattened(draws[a]), flattened(draws[b])) for a, b in itertools.combinations(draws, 2)]
    tensors = [
        (f"{a}; {b}", flattened({a: first[a]}), flattened({b: first[b]}))
        for a, b in itertools.combinations(first, 2)
        if first[a].shape == first[b].shape
    ]
    blocks = [
        (f"{name}, block {k}; block {k + 1}", x[: len(y)], y)
        for name, t in first.items()
        for k, (x, y) in enumerate(itertools.pairwise(flattened({name: part}) for part in t.reshape(-1).split(BLOCK)))
    ]
    for title, found in (("draws", pairs), ("tensors of one shape", tensors), ("blocks of a tensor", blocks)):
        if found:
            names, x, y = max(found, key=lambda pair: _correlation(pair[1], pair[2]))
            value = _correlation(x, y)
            what = f"correlation of two {title} ({names}), in standard errors"
            yield Measurement(what, value, f"at most {MAX_ERRORS + 1:g}", value <= MAX_ERRORS + 1)


def flattened(tensors: Weights) -> np.ndarray:
    """Return all values, float64 [d]."""
    values: np.ndarray = torch.cat([t.double().reshape(-1) for t in tensors.values()]).numpy()
    return values


def _test_deviation(what: str, values: np.ndarray, expected: float) -> Measurement:
    found, errors = float(np.sqrt(np.mean(values**2))), _num_errors(values, expected)
    allowed = f"{expected:.4g} within {MAX_ERRORS:g} standard errors, differs by {errors:.1f}"
    return Measurement(f"{what}: standard deviation", found, allowed, errors <= MAX_ERRORS)


def _num_errors(values: np.ndarray, expected: float) -> float:
    """Return how many standard errors the mean square differs from that of Gaussian values (Wilson and Hilferty)."""
    spread = 2 / (9 * len(values))
    return abs(float(np.mean((values / expected) ** 2)) ** (1 / 3) - 1 + spread) / math.sqrt(spread)


def _correlation(x: np.ndarray, y: np.ndarray) -> float:
    scale = float(np.sqrt(np.mean(x**2) * np.mean(y**2)))
    return abs(float(np.mean(x * y))) / scale * math.sqrt(len(x)) if scale else math.inf
