"""Sweep files: an experiment and the settings that vary; every combination is one run.

    experiment | experiments   experiment file, or several; or the keys of the experiment are in the sweep file itself
    set        dotted path -> value, for all runs
    variants   name -> settings (dotted path -> value), or a YAML file with settings
    grid       dotted path -> values; `path, path` -> lists of values, zipped; any name -> named settings as in variants
    seeds      seeds of the experiment
    stop       {median: ...}: early stopping of runs with low scores
    table      {metrics: [...], against: ...}: content of the table

The file of a variant may be an experiment that extends another; only the settings that it changes are used.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from simfl import config
from simfl.config.fields import read, shown
from simfl.config.inheritance import BASE, SWEEP, Settings
from simfl.config.overrides import TOP
from simfl.constraints import PositiveInt
from simfl.errors import ConfigError, nearest
from simfl.experiment import Experiment
from simfl.reports.table_spec import TableSpec, check_spec, restrict_to_planned
from simfl.sweeps.axes import AxisEntry, axes_of, settings_of

SWEEP_KEYS = (BASE, *SWEEP)  # all other keys belong to the experiment


@dataclass(frozen=True)
class MedianStopping:
    """Early stopping of a run whose best score is below the median of the other runs' mean scores up to this round."""

    after: PositiveInt = 1  # rounds that every run completes
    least: PositiveInt = 3  # number of other runs that must have reached the same round


@dataclass(frozen=True)
class EarlyStopping:
    """Early stopping of runs."""

    median: MedianStopping | None = None  # median stopping; null: off


@dataclass(frozen=True)
class Point:
    """One run of a sweep."""

    label: str  # name of the run and its folder
    varied: Mapping[str, object]  # its value of everything that varies: column of the tables -> number or text
    experiment: Experiment


@dataclass(frozen=True)
class Sweep:
    """All runs of a sweep, in the order of its file; the last axis varies fastest."""

    name: str
    points: tuple[Point, ...]
    stop: EarlyStopping = field(default_factory=EarlyStopping)
    table: TableSpec = field(default_factory=TableSpec)
    files: tuple[Path, ...] = ()  # files that the sweep was read from, its own first
    partial: bool = False  # whether --only left runs out


def load(path: Path, overrides: Iterable[str] = (), only: Iterable[str] = ()) -> Sweep:
    """Read a sweep file.

    Args:
        path: The sweep file.
        overrides: `path=value` settings of all runs; `seeds=…` and `grid.PATH=…` replace axes.
        only: Patterns of run names, such as `fedprox*`; all runs if empty.

    Raises:
        ConfigError: The sweep, or the experiment of one of its runs, is invalid.
    """
    given = config.keys_of(path)
    _check_keys(path, given)
    given, settings = _overridden(given, overrides)
    axes = list(axes_of(path, given))
    if not axes:
        raise ConfigError(f"{path}: no setting varies; give grid, variants, experiments or seeds, or use simfl run")
    shared = settings_of(given.get("set"), "set")
    _check_effect(settings, shared, axes)
    name = str(given.get("name") or path.stem)
    base, files = (None, [path]) if "experiments" in given else _base(path, given)
    common = {**shared, **settings}
    points = tuple(_points(path, name, base, common, axes))
    stop, chosen = read(EarlyStopping, _or_empty(given, "stop"), "stop"), _chosen(points, tuple(only))
    files += [file for axis in axes for entry in axis for file in entry.files]
    shown = _table(path, _or_empty(given, "table"), points, chosen)
    return Sweep(name, chosen, stop, shown, tuple(dict.fromkeys(files)), partial=len(chosen) < len(points))


def _check_keys(path: Path, given: Mapping[str, object]) -> None:
    """Check that the experiment is either in another file or in this one."""
    named = [key for key in ("experiment", "experiments") if key in given]
    allowed = [*SWEEP_KEYS, "name"] if named else [*SWEEP_KEYS, *TOP]
    for key in given:
        if key not in allowed:
            hint = f"write it under set, as {key}" if key in TOP else nearest(str(key), allowed)
            raise ConfigError(f"{path}: a sweep has no key {key!r}; {hint}")
    if not named and not any(key in given for key in TOP if key != "name"):
        raise ConfigError(
            f"{path}: experiment: missing; give an experiment file, or write the keys of the experiment here"
        )
    if len(named) == 2:
        raise ConfigError(f"{path}: both experiment and experiments given; give one of them")


def _overridden(given: dict[str, object], overrides: Iterable[str]) -> tuple[dict[str, object], Settings]:
    """Return the content of the file with axes replaced, and the settings of all runs."""
    settings: Settings = {}
    for text in overrides:
        path, value = config.assignment(text)
        head, _, rest = path.partition(".")
        if head not in SWEEP_KEYS:
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


def _base(path: Path, given: Mapping[str, object]) -> tuple[dict[str, object], list[Path]]:
    """Return the experiment that varies, and the files that it and the sweep were read from."""
    if "experiment" in given:
        other = config.base_file(path, given["experiment"])
        return config.whole(other), [path, *config.files(other)]
    return {key: value for key, value in given.items() if key not in SWEEP_KEYS}, [path]


def _check_effect(settings: Settings, common: Mapping[str, object], axes: list[list[AxisEntry]]) -> None:
    """Refuse a setting that every run overrides."""
    for where, path in [*(("--set ", path) for path in settings), *(("set.", path) for path in common)]:
        for axis in axes:
            if all(path in entry.settings for entry in axis):
                raise ConfigError(f"{where}{path}: has no effect, because it varies in this sweep")


def _points(
    path: Path, name: str, base: dict[str, object] | None, common: Settings, axes: list[list[AxisEntry]]
) -> Iterator[Point]:
    seen: set[str] = set()
    for entries in itertools.product(*axes):
        label = "_".join(entry.label for entry in entries)
        if label in seen:
            raise ConfigError(f"{path}: two runs have the name {label}; name them with variants")
        seen.add(label)
        given = base if base is not None else config.whole(next(e.file for e in entries if e.file is not None))
        try:
            for settings in (common, *(entry.settings for entry in entries)):
                given = config.with_settings(given, settings)
            varied = {key: value for entry in entries for key, value in entry.varied.items()}
            experiment = config.parse({**given, "name": label, **_grouped(given, name, varied)})
        except ConfigError as error:
            raise ConfigError(f"{path}: run {label}: {str(error).removeprefix('--set ')}") from None
        yield Point(label, varied, experiment)


def _grouped(given: Mapping[str, object], name: str, varied: Mapping[str, object]) -> dict[str, object]:
    """Group the runs of a sweep in Weights & Biases, with the values of everything that varies."""
    tracking = given.get("tracking")
    if not isinstance(tracking, Mapping) or not isinstance(tracking.get("wandb"), Mapping):
        return {}
    return {"tracking": {**tracking, "wandb": {"group": name, "varied": dict(varied), **tracking["wandb"]}}}


def _table(path: Path, given: object, points: tuple[Point, ...], chosen: tuple[Point, ...]) -> TableSpec:
    """Return the content of the table, as far as the chosen runs provide it; ConfigError if no run could."""
    table = read(TableSpec, given, "table")
    try:
        check_spec(table, points)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    return restrict_to_planned(table, chosen)


def _or_empty(given: Mapping[str, object], key: str) -> object:
    """Return the value of a key; an empty mapping if it is missing or null."""
    found = given.get(key)
    return {} if found is None else found


def _chosen(points: tuple[Point, ...], only: tuple[str, ...]) -> tuple[Point, ...]:
    for pattern in only:
        if not any(fnmatchcase(point.label, pattern) for point in points):
            raise ConfigError(f"--only {pattern}: no run has this name; {nearest(pattern, [p.label for p in points])}")
    return tuple(p for p in points if not only or any(fnmatchcase(p.label, pattern) for pattern in only))
