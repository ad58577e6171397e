"""Statistical tests of noise that should be independent standard normals, in every tensor, slice and scalar.

Limits are 6 to 8 standard errors wide. `power` is the smallest relative error of the scale that a test would find.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from scipy.special import ndtri

from simfl.protocol import Weights

MAX_ERRORS = 6.0  # standard errors by which one measurement may differ
MAX_ERRORS_OF_MANY = 8.0  # the same for the largest of many measurements
MAX_EQUAL = 0.2  # share of values that may equal another one in size; float32 has few values near zero
TAIL = 10.0  # expected number of values beyond a bound that at least one value has to exceed
LARGEST = 8.0  # no value of up to 10^9 is larger
MAX_SLICES = 2000  # rows of a tensor, and single values, that are tested one by one

Draws = Mapping[str, Weights]  # noise by the name of a draw, divided by the standard deviation that is accounted for


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


def flattened(tensors: Weights) -> np.ndarray:
    """Return all values, float64 [d]."""
    values: np.ndarray = torch.cat([t.double().reshape(-1) for t in tensors.values()]).cpu().numpy()
    return values


def at_most(what: str, value: float, limit: float) -> Measurement:
    """Return a measurement that holds if the value is at most the limit."""
    return Measurement(what, value, f"at most {limit:.4g}", value <= limit)


def check_normals(what: str, draws: Draws) -> Iterator[Measurement]:
    """Test that all values of all draws are independent standard normals."""
    values = np.stack([flattened(draw) for draw in draws.values()])  # [draws, d]
    yield check_zeros(what, draws)
    yield check_scale(what, values.reshape(-1))
    yield _worst_tensor(what, draws)
    yield from _worst_slices(what, draws)
    yield from check_shape(what, values.reshape(-1))
    yield _check_repeats(what, values.reshape(-1))
    yield _check_shifts(what, values)
    yield check_pairs(what, {name: values[k] for k, name in enumerate(draws)})


def check_zeros(what: str, draws: Draws) -> Measurement:
    """Test that no value is exactly zero in all draws."""
    names = next(iter(draws.values()))
    silent = {name: int(torch.stack([draw[name] == 0 for draw in draws.values()]).all(0).sum()) for name in names}
    worst = max(silent, key=lambda name: silent[name])
    where = f", most of them in {worst}" if silent[worst] else ""
    return at_most(f"{what}: values without noise{where}", sum(silent.values()), 0)


def check_scale(what: str, values: np.ndarray, limit: float = MAX_ERRORS) -> Measurement:
    """Test the standard deviation of standard normals (Wilson and Hilferty)."""
    errors = num_errors(float(np.mean(values**2)), len(values))
    allowed = f"1 within {limit:g} standard errors; finds an error of {power(len(values), limit):.1%}"
    return Measurement(f"{what}: standard deviation", float(np.sqrt(np.mean(values**2))), allowed, abs(errors) <= limit)


def power(count: int, limit: float = MAX_ERRORS) -> float:
    """Return the smallest relative error of a standard deviation that this many values reveal."""
    return limit / math.sqrt(2 * count)


def check_shape(what: str, values: np.ndarray) -> Iterator[Measurement]:
    """Test mean, third and fourth moment, and that the tails are neither cut off nor too long."""
    n, scaled = len(values), values / max(float(np.sqrt(np.mean(values**2))), 1e-30)
    for name, moment, spread in (
        ("mean", float(scaled.mean()), 1.0),
        ("third moment", float(np.mean(scaled**3)), 15.0),
        ("fourth moment minus that of a Gaussian", float(np.mean(scaled**4)) - 3, 96.0),
    ):
        allowed = MAX_ERRORS * math.sqrt(spread / n)
        yield Measurement(f"{what}: {name}", moment, f"within ±{allowed:.2g}", abs(moment) <= allowed)
    largest, least = float(np.abs(scaled).max()), -float(ndtri(min(0.5, TAIL / n)))
    yield Measurement(
        f"{what}: largest value", largest, f"from {least:.3g} to {LARGEST:g}", least <= largest <= LARGEST
    )


def check_pairs(what: str, draws: Mapping[str, np.ndarray]) -> Measurement:
    """Test the largest correlation of any two draws [d], in standard errors."""
    if len(draws) < 2:
        return at_most(f"{what}: correlation of two draws, in standard errors", 0.0, MAX_ERRORS_OF_MANY)
    names, values = list(draws), np.stack(list(draws.values()))
    values = values / np.maximum(np.sqrt(np.mean(values**2, axis=1, keepdims=True)), 1e-30)
    found = np.abs(values @ values.T) / math.sqrt(values.shape[1])
    np.fill_diagonal(found, 0.0)
    a, b = np.unravel_index(int(found.argmax()), found.shape)
    where = f" ({names[a]}; {names[b]})"
    return at_most(
        f"{what}: correlation of two draws{where}, in standard errors", float(found[a, b]), MAX_ERRORS_OF_MANY
    )


def _worst_tensor(what: str, draws: Draws) -> Measurement:
    names = next(iter(draws.values()))
    pooled = {name: flattened({k: draw[name] for k, draw in draws.items()}) for name in names}
    worst = max(pooled, key=lambda name: abs(num_errors(float(np.mean(pooled[name] ** 2)), len(pooled[name]))))
    return check_scale(f"{what}, in {worst}", pooled[worst], MAX_ERRORS_OF_MANY)


def _worst_slices(what: str, draws: Draws) -> Iterator[Measurement]:
    """Test the scale in rows of tensors and in single values, each over all draws."""
    for title, view in (("row", _rows), ("value", _single_values)):
        worst, where, count = 0.0, "", 1
        for name in next(iter(draws.values())):
            squares = np.stack([view(draw[name]) for draw in draws.values()])  # [draws, slices, d]
            squares = (squares**2).transpose(1, 0, 2).reshape(squares.shape[1], -1)[:MAX_SLICES]
            errors = np.abs([num_errors(float(one), squares.shape[1]) for one in squares.mean(1)])
            if errors.max() > worst:
                worst, where, count = float(errors.max()), f" ({name}, {int(errors.argmax())})", squares.shape[1]
        text = f"{what}: scale of the worst {title}{where}, in standard errors"
        allowed = f"at most {MAX_ERRORS_OF_MANY:g}; finds an error of {power(count, MAX_ERRORS_OF_MANY):.0%}"
        yield Measurement(text, worst, allowed, worst <= MAX_ERRORS_OF_MANY)


def _rows(tensor: torch.Tensor) -> np.ndarray:
    rows: np.ndarray = tensor.double().reshape(len(tensor) if tensor.dim() > 1 else 1, -1).cpu().numpy()
    return rows


def _single_values(tensor: torch.Tensor) -> np.ndarray:
    values: np.ndarray = tensor.double().reshape(-1, 1).cpu().numpy()
    return values


def _check_repeats(what: str, values: np.ndarray) -> Measurement:
    """Test how many values equal another one, up to their sign: reversed, mirrored and shuffled copies."""
    sizes = np.abs(values.astype(np.float32))
    return at_most(f"{what}: share of values that occur twice", 1 - len(np.unique(sizes)) / len(sizes), MAX_EQUAL)


def _check_shifts(what: str, values: np.ndarray) -> Measurement:
    """Test the largest correlation of a draw with itself, shifted by any number of values."""
    n = values.shape[1]
    if n < 2:
        return at_most(f"{what}: correlation with its shifts, in standard errors", 0.0, MAX_ERRORS_OF_MANY)
    spectrum = np.fft.rfft(values, 2 * n, axis=1)
    found = np.fft.irfft(np.abs(spectrum) ** 2, axis=1)[:, 1:n].sum(0)  # over all draws
    overlaps = np.arange(n - 1, 0, -1) * len(values)
    errors = np.abs(found) / np.sqrt(overlaps) / max(float(np.mean(values**2)), 1e-30)
    errors[overlaps < 30] = 0.0
    lag = int(errors.argmax()) + 1
    return at_most(
        f"{what}: correlation with its shift by {lag}, in standard errors", float(errors.max()), MAX_ERRORS_OF_MANY
    )


def num_errors(mean_square: float, count: int) -> float:
    """Return by how many standard errors a mean square differs from 1 (Wilson and Hilferty)."""
    spread = 2 / (9 * count)
    return (mean_square ** (1 / 3) - 1 + spread) / math.sqrt(spread)
