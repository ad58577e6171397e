"""The space of a search: for each setting the values that it may take.

local.learning_rate: {log_uniform: [0.001, 1]}
local.steps: {int: [4, 64], step: 4}
local.batch_size: {log_int: [8, 128]}
server.momentum: {uniform: [0, 0.95]}
algorithm: {choice: [fedavg, {name: fedprox, mu: 0.1}]}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from simfl.config.fields import shown
from simfl.errors import ConfigError, nearest
from simfl.sweeps.axes import word
from simfl.sweeps.optuna_import import load_optuna

RANGES = {"uniform": (float, False), "log_uniform": (float, True), "int": (int, False), "log_int": (int, True)}
KINDS = (*RANGES, "choice")
STEP_ROUNDING = 1e-6  # of a value that should be a whole number of steps above the lower bound


@dataclass(frozen=True)
class Range:
    """Numbers between two bounds, both included."""

    low: float
    high: float
    whole: bool  # whole numbers
    log: bool  # the logarithm is uniform
    step: float | None = None  # distance between values; None: all of them

    def distribution(self) -> Any:
        """Return the distribution of Optuna."""
        distributions = load_optuna().distributions
        if self.whole:
            return distributions.IntDistribution(int(self.low), int(self.high), self.log, int(self.step or 1))
        return distributions.FloatDistribution(self.low, self.high, self.log, self.step)

    @property
    def corners(self) -> list[object]:
        """Values that stand for all in a check."""
        return [self.low, self.high]

    def key_of(self, value: object) -> object:
        """Return the value under which Optuna knows a setting, or None if the space does not contain it."""
        if isinstance(value, bool) or not isinstance(value, int if self.whole else (int, float)):
            return None
        if not self.low <= value <= self.high:
            return None
        steps = 0.0 if self.step is None else (value - self.low) / self.step
        return (int(value) if self.whole else float(value)) if abs(steps - round(steps)) < STEP_ROUNDING else None

    def value_of(self, key: object) -> object:
        """Return the setting that Optuna knows as `key`."""
        return key

    def to_json(self) -> dict[str, object]:
        """Return the range for `sweep.json`."""
        return {"low": self.low, "high": self.high, "whole": self.whole, "log": self.log, "step": self.step}


@dataclass(frozen=True)
class Choice:
    """A list of values of any kind."""

    options: Mapping[str, object]  # label -> value

    def distribution(self) -> Any:
        """Return the distribution of Optuna, over the labels."""
        return load_optuna().distributions.CategoricalDistribution(list(self.options))

    @property
    def corners(self) -> list[object]:
        """All values."""
        return list(self.options.values())

    def key_of(self, value: object) -> object:
        """Return the label of a value, or None if it is not in the list."""
        return next((label for label, option in self.options.items() if option == value), None)

    def value_of(self, key: object) -> object:
        """Return the value with this label."""
        return self.options[str(key)]

    def to_json(self) -> dict[str, object]:
        """Return the list for `sweep.json`."""
        return {"choice": list(self.options)}


Domain = Range | Choice


def space_of(given: object, where: str) -> dict[str, Domain]:
    """Read a space.

    Raises:
        ConfigError: It is empty, or a setting has no kind of values, several, or wrong bounds.
    """
    if not isinstance(given, Mapping) or not given:
        raise ConfigError(f"{where}: {shown(given)} is not a mapping of dotted paths to {', '.join(KINDS)}")
    return {str(path): _domain(values, f"{where}.{path}") for path, values in given.items()}


def _domain(given: object, where: str) -> Domain:
    if not isinstance(given, Mapping):
        raise ConfigError(
            f"{where}: {shown(given)} has no kind; write {{KIND: values}}, KIND one of {', '.join(KINDS)}"
        )
    for key in given:
        if key not in (*KINDS, "step"):
            raise ConfigError(f"{where}: unknown {key!r}; {nearest(str(key), [*KINDS, 'step'])}")
    kinds = [key for key in given if key in KINDS]
    if len(kinds) != 1:
        raise ConfigError(f"{where}: {shown(dict(given))} names {len(kinds)} kinds; give one of {', '.join(KINDS)}")
    kind = str(kinds[0])
    return _choice(given, where) if kind == "choice" else _range(kind, given, where)


def _choice(given: Mapping[str, object], where: str) -> Choice:
    values = given["choice"]
    if "step" in given:
        raise ConfigError(f"{where}: step has no effect on choice")
    if not isinstance(values, list) or len(values) < 2:
        raise ConfigError(f"{where}: {shown(values)} is not a list of at least 2 values")
    options: dict[str, object] = {}
    for value in values:
        label = word(value)
        if label in options:
            raise ConfigError(f"{where}: {shown(value)} is a duplicate")
        options[label] = value
    return Choice(options)


def _range(kind: str, given: Mapping[str, object], where: str) -> Range:
    number, log = RANGES[kind]
    bounds, step = given[kind], given.get("step")
    if not isinstance(bounds, list) or len(bounds) != 2:
        raise ConfigError(f"{where}: {shown(bounds)} is not a list of 2 bounds")
    for value in [*bounds, *([] if step is None else [step])]:
        whole = isinstance(value, int) and not isinstance(value, bool)
        if not whole and (
            number is int or not isinstance(value, float) or value != value or abs(value) == float("inf")
        ):
            raise ConfigError(f"{where}: {shown(value)} is not a {'whole' if number is int else 'finite'} number")
    low, high = (number(bound) for bound in bounds)
    if not low < high:
        raise ConfigError(f"{where}: {shown(bounds)} given; the first bound must be below the second")
    if log and low <= 0:
        raise ConfigError(f"{where}: {shown(bounds)} given; the bounds of {kind} must be above 0")
    if step is not None and (log or not 0 < step <= high - low):  # type: ignore[operator]
        allowed = f"no step with {kind}" if log else f"above 0, at most {high - low:g}"
        raise ConfigError(f"{where}: step: {shown(step)} given; allowed: {allowed}")
    return Range(low, high, number is int, log, None if step is None else number(step))
