"""A sweep's file: an experiment and what of it varies, read into one whole experiment for each run.

    experiment | experiments   the file of the experiment, or several; or its keys stand in the sweep's file itself
    set        dotted path -> value, for all runs
    variants   name -> settings (dotted path -> value), or the YAML file that holds them
    grid       dotted path -> values; `path, path` -> lists of values, zipped; any name -> named settings as in variants
    seeds      the experiment's seeds
    stop       {median: ...}: runs that fall behind are ended
    table      {metrics: [...], against: ...}: what its table has

A variant's file may be an experiment that names another: of it, what it says otherwise counts, for any experiment.

Every combination is one run.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from simfl import config
from simfl.config.fields import read, shown
from simfl.config.inheritance import OTHER, SWEEP, Settings
from simfl.config.overrides import TOP
from simfl.constraints import Count
from simfl.errors import ConfigError, nearest
from simfl.experiment import Experiment
from simfl.reports.table_spec import Shown, check, cut
from simfl.sweeps.axes import Choice, axes_of, settings_of

OWN = (OTHER, *SWEEP)  # the other keys are an experiment's


@dataclass(frozen=True)
class Median:
    """A run ends early when its best score so far is below the median of the other runs' at the same round."""

    after: Count = 1  # rounds that every run may finish
    least: Count = 3  # other runs that must have come as far


@dataclass(frozen=True)
class Stop:
    """When a run ends before its last round."""

    median: Median | None = None  # null: never


@dataclass(frozen=True)
class Point:
    """One run of a sweep."""

    label: str  # the name of the run and its folder
    shown: Mapping[str, Any]  # what it has of each thing that varies: column of the tables -> number or text
    experiment: Experiment


@dataclass(frozen=True)
class Sweep:
    """All runs of a sweep, in the order of its file: the last axis moves fastest."""

    name: str
    points: tuple[Point, ...]
    stop: Stop = field(default_factory=Stop)
    table: Shown = field(default_factory=Shown)
    files: tuple[Path, ...] = ()  # that all of it was read from, its own the first


def load(path: Path, overrides: Iterable[str] = (), only: Iterable[str] = ()) -> Sweep:
    """The sweep in a file; ConfigError where it, or the experiment of one of its runs, cannot be meant.

    `overrides`: `path=value`, for all runs; `seeds=…` and `grid.PATH=…` replace what varies. `only`: patterns of run
    names, such as `fedprox*`.
    """
    given = config.keys_of(path)
    _check_keys(path, given)
    given, settings = _overridden(given, overrides)
    axes = list(axes_of(path, given))
    if not axes:
        raise ConfigError(f"{path}: nothing varies; give grid, variants, experiments or seeds, or use simfl run")
    _check_effect(settings, given.get("set") or {}, axes)
    name = str(given.get("name") or path.stem)
    base, files = (None, [path]) if "experiments" in given else _base(path, given)
    common = {**settings_of(given.get("set"), "set"), **settings}
    points = tuple(_points(path, name, base, common, axes))
    stop, chosen = read(Stop, _or_none(given, "stop"), "stop"), _chosen(points, tuple(only))
    files += [file for axis in axes for choice in axis for file in choice.files]
    return Sweep(
        name, chosen, stop, _table(path, _or_none(given, "table"), points, chosen), tuple(dict.fromkeys(files))
    )


def _check_keys(path: Path, given: Mapping[str, Any]) -> None:
    """An experiment is named, or stands in the file, not both."""
    named = [key for key in ("experiment", "experiments") if key in given]
    allowed = [*OWN, "name"] if named else [*OWN, *TOP]
    for key in given:
        if key not in allowed:
            why = f"; the experiment is in another file: put it under set, as {key}" if key in TOP else ""
            raise ConfigError(f"{path}: a sweep has no key {key!r}{why or '; ' + nearest(str(key), allowed)}")
    if not named and not any(key in given for key in TOP if key != "name"):
        raise ConfigError(f"{path}: experiment: missing; name the file of the experiment, or write its keys here")
    if len(named) == 2:
        raise ConfigError(f"{path}: experiment and experiments are given; allowed: one of them")


def _overridden(given: dict[str, Any], overrides: Iterable[str]) -> tuple[dict[str, Any], Settings]:
    """The file with its axes replaced, and the settings for all runs."""
    settings: Settings = {}
    for text in overrides:
        path, value = config.assignment(text)
        head, _, rest = path.partition(".")
        if head not in OWN:
            settings[path] = value
        elif not rest:
            given[head] = value
        elif head in ("stop", "table"):
            given = config.override(given, path, value)
        else:
            named = given.get(head) or {}
            if not isinstance(named, Mapping):
                raise ConfigError(f"--set {path}: {head} is {shown(named)}, which has no entry {rest!r}")
            given[head] = {**named, rest: value}
    return given, settings


def _base(path: Path, given: Mapping[str, Any]) -> tuple[dict[str, Any], list[Path]]:
    """The experiment that varies, and the files that it and the sweep stand in."""
    if "experiment" in given:
        other = config.named(path, given["experiment"])
        return config.whole(other), [path, *config.files(other)]
    return {key: value for key, value in given.items() if key not in OWN}, [path]


def _check_effect(settings: Settings, common: Mapping[str, Any], axes: list[list[Choice]]) -> None:
    """A setting that every run sets otherwise would have no effect."""
    for where, path in [*(("--set ", path) for path in settings), *(("set.", path) for path in common)]:
        for axis in axes:
            if all(path in choice.settings for choice in axis):
                raise ConfigError(f"{where}{path}: it varies in this sweep; change it there, or leave it out here")


def _points(
    path: Path, name: str, base: dict[str, Any] | None, common: Settings, axes: list[list[Choice]]
) -> Iterator[Point]:
    seen: set[str] = set()
    for choices in itertools.product(*axes):
        label = "_".join(choice.label for choice in choices)
        if label in seen:
            raise ConfigError(f"{path}: two runs would be called {label}; name them with variants")
        seen.add(label)
        given = base if base is not None else config.whole(next(c.file for c in choices if c.file is not None))
        try:
            for settings in (common, *(choice.settings for choice in choices)):
                given = config.with_settings(given, settings)
            varied = {key: value for choice in choices for key, value in choice.shown.items()}
            experiment = config.parse({**given, "name": label, **_grouped(given, name, varied)})
        except ConfigError as error:
            raise ConfigError(f"{path}: run {label}: {str(error).removeprefix('--set ')}") from None
        yield Point(label, varied, experiment)


def _grouped(given: Mapping[str, Any], name: str, varied: Mapping[str, Any]) -> dict[str, Any]:
    """The runs of a sweep stand together in Weights & Biases, and each tells what it has of what varies."""
    tracking = given.get("tracking")
    if not isinstance(tracking, Mapping) or not isinstance(tracking.get("wandb"), Mapping):
        return {}
    return {"tracking": {**tracking, "wandb": {"group": name, "varied": dict(varied), **tracking["wandb"]}}}


def _table(path: Path, given: Any, points: tuple[Point, ...], chosen: tuple[Point, ...]) -> Shown:
    """What the file wants in its table, as far as the chosen runs can have it; ConfigError if none of all could."""
    table = read(Shown, given, "table")
    try:
        check(table, points)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    return cut(table, chosen)


def _or_none(given: Mapping[str, Any], key: str) -> Any:
    """What a key has; nothing is as good as no key."""
    found = given.get(key)
    return {} if found is None else found


def _chosen(points: tuple[Point, ...], only: tuple[str, ...]) -> tuple[Point, ...]:
    for pattern in only:
        if not any(fnmatchcase(point.label, pattern) for point in points):
            raise ConfigError(f"--only {pattern}: no run is called so; {nearest(pattern, [p.label for p in points])}")
    return tuple(p for p in points if not only or any(fnmatchcase(p.label, pattern) for pattern in only))
