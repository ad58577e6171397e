"""Sweep files: an experiment and the settings that vary; every combination is one run.

    experiment | experiments   experiment file, or several; or the keys of the experiment are in the sweep file itself
    set        dotted path -> value, for all runs
    variants   name -> settings (dotted path -> value), or a YAML file with settings
    grid       dotted path -> values; `path, path` -> lists of values, zipped; any name -> named settings as in variants
    seeds      seeds of the experiment
    stop       {median: ...}: early stopping of runs with low scores
    table      {metrics: [...], against: ...}: content of the table
    search     {space: ..., trials: ...}: trials proposed by a sampler, instead of axes (`simfl.sweeps.search`)

The file of a variant may be an experiment that extends another; only the settings that it changes are used.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
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
from simfl.runs.storage import is_url
from simfl.sweeps.axes import AxisEntry, axes_of, grid_paths, settings_of
from simfl.sweeps.optuna_import import load_optuna
from simfl.sweeps.overlaps import check_paths, is_hidden, refuse_name
from simfl.sweeps.point import Point
from simfl.sweeps.search import Search, SearchPlan, plan_of, trial_label

SWEEP_KEYS = (BASE, *SWEEP)  # all other keys belong to the experiment
INSTEAD = {  # key that a search does not have -> what to use
    "experiments": "name one experiment",
    "variants": "name them in search.space, with choice",
    "grid": "move its settings to search.space, with choice",
    "seeds": "give the one seed of all trials as set: {seed: N}",
    "stop": "give search.pruner",
}


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
class Sweep:
    """All runs of a sweep, in the order of its file; the last axis varies fastest."""

    name: str
    points: tuple[Point, ...]
    stop: EarlyStopping = field(default_factory=EarlyStopping)
    table: TableSpec = field(default_factory=TableSpec)
    files: tuple[Path, ...] = ()  # files that the sweep was read from, its own first
    partial: bool = False  # whether --only left runs out
    search: SearchPlan | None = None  # proposes the runs while the sweep is in progress; None: all are in `points`

    @property
    def labels(self) -> list[str]:
        """The names of all runs."""
        if self.search is None:
            return [point.label for point in self.points]
        return [trial_label(number) for number in range(self.search.search.trials)]

    @property
    def experiments(self) -> list[Experiment]:
        """The experiments of all runs; of a search, trials at the bounds of its space."""
        return [point.experiment for point in self.points] if self.search is None else list(self.search.examples)


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
    if given.get("search") is not None:
        return _search(path, given, settings, tuple(only))
    axes = list(axes_of(path, given))
    if not axes:
        raise ConfigError(
            f"{path}: no setting varies; give grid, variants, experiments, seeds or search, or use simfl run"
        )
    shared = settings_of(given.get("set"), "set")
    name = str(given.get("name") or path.stem)
    base, files = (None, [path]) if "experiments" in given else _base(path, given)
    example = base if base is not None else config.whole(next(e.file for e in axes[0] if e.file is not None))
    check_paths(example, "grid", grid_paths(given))
    _check_effect(example, settings, shared, axes)
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
        elif head in ("stop", "table", "search"):
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


def _check_effect(
    given: Mapping[str, object], settings: Settings, common: Mapping[str, object], axes: list[list[AxisEntry]]
) -> None:
    """Refuse a setting that every run overrides; `given` is the experiment of a run."""
    for where, path in [*(("--set ", path) for path in settings), *(("set.", path) for path in common)]:
        refuse_name(path, where)
        for axis in axes:
            if all(is_hidden(given, path, entry.settings) for entry in axis):
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
        changes = [common, *(entry.settings for entry in entries)]
        varied = {key: value for entry in entries for key, value in entry.varied.items()}
        try:
            yield Point.of(label, varied, given, changes, name)
        except ConfigError as error:
            raise ConfigError(f"{path}: run {label}: {str(error).removeprefix('--set ')}") from None


def _search(path: Path, given: Mapping[str, object], settings: Settings, only: tuple[str, ...]) -> Sweep:
    """Return the sweep of a search; its trials are proposed when workers are free."""
    for key, instead in INSTEAD.items():
        if given.get(key) is not None:
            raise ConfigError(f"{path}: both search and {key} given; {instead}")
    if only:
        raise ConfigError(f"--only {only[0]}: has no effect on a search, whose trials follow from one another")
    load_optuna()
    search: Search = read(Search, given["search"], "search")
    if search.fork is not None and not is_url(search.fork.run):
        search = replace(search, fork=replace(search.fork, run=str((path.parent / search.fork.run).resolve())))
    shared = settings_of(given.get("set"), "set")
    base, files = _base(path, given)
    check_paths(base, "search.space", list(search.space))
    for where, key in [*(("--set ", key) for key in settings), *(("set.", key) for key in shared)]:
        refuse_name(key, where)
        if is_hidden(base, key, search.space):
            raise ConfigError(f"{where}{key}: has no effect, because it varies in this search")
    try:
        for change in (shared, settings):
            base = config.with_settings(base, change)
    except ConfigError as error:
        raise ConfigError(f"{path}: {str(error).removeprefix('--set ')}") from None
    name = str(given.get("name") or path.stem)
    plan = plan_of(path, name, search, base)
    table = read(TableSpec, _or_empty(given, "table"), "table")
    if not table.metrics:
        table = replace(table, metrics=(plan.objective.name,))
    return Sweep(name, (), table=table, files=tuple(dict.fromkeys(files)), search=plan)


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
