"""A sweep's file: an experiment and what of it varies, read into one whole experiment for each run.

    experiment | experiments   the file of the experiment, or several; or its keys stand in the sweep's file itself
    set        dotted path -> value, for all runs
    variants   name -> settings (dotted path -> value), or the YAML file that holds them
    grid       dotted path -> values; `path, path` -> lists of values, zipped; any name -> named settings as in variants
    seeds      the experiment's seeds
    stop       {median: ...}: runs that fall behind are ended

Every combination is one run. A path may begin at a phase's key, which stands for the only phase; `phases.*` is all of
them.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from simfl import config
from simfl.errors import ConfigError, nearest
from simfl.experiment import Experiment, Phase
from simfl.fields import read, shown
from simfl.ranges import Count

OWN = ("experiment", "experiments", "set", "variants", "grid", "seeds", "stop")  # the other keys are an experiment's
TOP = tuple(f.name for f in fields(Experiment))
PHASE = tuple(f.name for f in fields(Phase))
Settings = dict[str, Any]  # dotted path -> value


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
class Choice:
    """One entry of an axis."""

    label: str  # in the names of runs
    shown: Mapping[str, Any]  # column of the tables -> value
    settings: Settings = field(default_factory=dict)
    file: Path | None = None  # of the experiment, if the axis is of experiments


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


def load(path: Path, overrides: Iterable[str] = (), only: Iterable[str] = ()) -> Sweep:
    """The sweep in a file; ConfigError where it, or the experiment of one of its runs, cannot be meant.

    `overrides`: `path=value`, for all runs; `seeds=…` and `grid.PATH=…` replace what varies. `only`: patterns of run
    names, such as `fedprox*`.
    """
    given = config.read_yaml(path)
    if not isinstance(given, Mapping):
        raise ConfigError(f"{path}: {shown(given)} is not a mapping of keys to values")
    _check_keys(path, given)
    given, settings = _overridden(dict(given), overrides)
    axes = list(_axes(path, given))
    if not axes:
        raise ConfigError(f"{path}: nothing varies; give grid, variants, experiments or seeds, or use simfl run")
    _check_effect(settings, given.get("set") or {}, axes)
    name = str(given.get("name") or path.stem)
    base = None if "experiments" in given else _base(path, given)
    common = {**_settings(given.get("set"), "set"), **settings}
    points = tuple(_points(path, name, base, common, axes))
    return Sweep(name, _chosen(points, tuple(only)), read(Stop, given.get("stop", {}), "stop"))


def _check_keys(path: Path, given: Mapping[str, Any]) -> None:
    """An experiment is named, or stands in the file, not both."""
    named = [key for key in ("experiment", "experiments") if key in given]
    allowed = [*OWN, "name"] if named else [*OWN, *TOP]
    for key in given:
        if key not in allowed:
            why = f"; the experiment is in another file: put it under set, as {key}" if key in TOP else ""
            raise ConfigError(f"{path}: a sweep has no key {key!r}{why or '; ' + nearest(str(key), allowed)}")
    if len(named) == 2:
        raise ConfigError(f"{path}: experiment and experiments are given; allowed: one of them")


def _overridden(given: dict[str, Any], overrides: Iterable[str]) -> tuple[dict[str, Any], Settings]:
    """The file with its axes replaced, and the settings for all runs."""
    settings: Settings = {}
    for text in overrides:
        path, value = config.assignment(text)
        head, _, rest = path.partition(".")
        if head == "grid" and rest:
            given["grid"] = {**(given.get("grid") or {}), rest: value}
        elif head in OWN:
            given[head] = value
        else:
            settings[path] = value
    return given, settings


def _base(path: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    if "experiment" in given:
        return _read(path.parent / _text(given["experiment"], "experiment"))
    return {key: value for key, value in given.items() if key not in OWN}


def _read(path: Path) -> dict[str, Any]:
    found = config.read_yaml(path)
    if not isinstance(found, Mapping):
        raise ConfigError(f"{path}: {shown(found)} is not a mapping of keys to values")
    return dict(found)


def _axes(path: Path, given: Mapping[str, Any]) -> Iterator[list[Choice]]:
    """What varies, slowest first: experiments, variants, the grid in its order, seeds."""
    if "experiments" in given:
        yield _experiments(path, given["experiments"])
    if given.get("variants") is not None:
        yield _named(path, "variants", "variant", given["variants"])
    grid = given.get("grid") or {}
    if not isinstance(grid, Mapping):
        raise ConfigError(f"grid: {shown(grid)} is not a mapping of dotted paths to lists of values")
    short = _short([part for key in grid for part in _paths(key)])
    for key, values in grid.items():
        if isinstance(values, Mapping):
            yield _named(path, f"grid.{key}", str(key), values)
        else:
            yield _listed(str(key), values, short)
    if "seeds" in given:
        if "seed" in grid:
            raise ConfigError("seeds: the grid has seed already; allowed: one of them")
        yield _listed("seed", given["seeds"], {"seed": "seed"}, where="seeds")


def _experiments(path: Path, given: Any) -> list[Choice]:
    if isinstance(given, Mapping):
        named = {str(name): path.parent / _text(file, f"experiments.{name}") for name, file in given.items()}
    else:
        patterns = [_text(item, "experiments") for item in _list(given, "experiments", "files")]
        files = [file for pattern in patterns for file in _matching(path, pattern)]
        named = {file.stem: file for file in files}
        if len(named) < len(files):
            raise ConfigError("experiments: two files have the same name; give them names, as in {a: x/run.yaml}")
    return [Choice(_clean(name), {"experiment": name}, file=file) for name, file in named.items()]


def _matching(path: Path, pattern: str) -> list[Path]:
    if not any(sign in pattern for sign in "*?["):
        return [path.parent / pattern]
    found = sorted(file for file in path.parent.glob(pattern) if file.resolve() != path.resolve())
    if not found:
        raise ConfigError(f"experiments: no file matches {pattern!r} in {path.parent}")
    return found


def _named(path: Path, where: str, column: str, given: Any) -> list[Choice]:
    """Named settings: name -> settings, or the YAML file beside the sweep that holds them."""
    if isinstance(given, list) and all(isinstance(item, str) for item in given):
        given = {Path(item).stem: item for item in given}
    if not isinstance(given, Mapping) or not given:
        raise ConfigError(f"{where}: {shown(given)} is not a mapping of names to settings")
    return [
        Choice(_clean(str(name)), {column: str(name)}, _settings(settings, f"{where}.{name}", path.parent))
        for name, settings in given.items()
    ]


def _settings(given: Any, where: str, folder: Path | None = None) -> Settings:
    if isinstance(given, str) and folder is not None:
        given = _read(folder / given)
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise ConfigError(f"{where}: {shown(given)} is not a mapping of dotted paths to values")
    return {str(key): value for key, value in given.items()}


def _listed(key: str, values: Any, short: Mapping[str, str], where: str = "") -> list[Choice]:
    """A list of values for one path; for several, a list of lists."""
    where, paths = where or f"grid.{key}", _paths(key)
    choices: list[Choice] = []
    for item in _list(values, where, "values"):
        row = [item] if len(paths) == 1 else item
        if not isinstance(row, list) or len(row) != len(paths):
            raise ConfigError(f"{where}: {shown(item)} is not a list of {len(paths)}, one for each of {key}")
        pairs = dict(zip(paths, row, strict=True))
        label = "_".join(_clean(f"{short[path]}-{_word(value)}") for path, value in pairs.items())
        choices.append(Choice(label, {short[p]: _cell(v) for p, v in pairs.items()}, pairs))
        if any(choice.settings == pairs for choice in choices[:-1]):
            raise ConfigError(f"{where}: {shown(item)} stands there twice")
    return choices


def _list(given: Any, where: str, of: str) -> list[Any]:
    if not isinstance(given, list) or not given:
        raise ConfigError(f"{where}: {shown(given)} is not a list of {of}; write [a, b]")
    return given


def _text(given: Any, where: str) -> str:
    if not isinstance(given, str):
        raise ConfigError(f"{where}: {shown(given)} is not the name of a file")
    return given


def _paths(key: Any) -> list[str]:
    return [part.strip() for part in str(key).split(",")]


def _short(paths: list[str]) -> dict[str, str]:
    """The end of each path, as much of it as tells them apart."""
    out = {}
    for path in paths:
        parts = path.split(".")
        for count in range(1, len(parts) + 1):
            end = ".".join(parts[-count:])
            rivals = [other for other in paths if other != path and f".{other}".endswith(f".{end}")]
            if not rivals and not parts[-count].isdecimal():
                break
        out[path] = end
    return out


def _word(value: Any) -> str:
    """A value in the name of a run: of a component its name, then its settings."""
    if isinstance(value, Mapping):
        named = next((key for key in ("name", "kind", "by", "optimizer") if isinstance(value.get(key), str)), None)
        rest = [f"{key}-{_word(item)}" for key, item in value.items() if key != named]
        return "-".join([str(value[named])] * (named is not None) + rest)
    if isinstance(value, list):
        return "-".join(_word(item) for item in value)
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _cell(value: Any) -> Any:
    return value if isinstance(value, (int, float, str)) else _word(value)


def _clean(text: str) -> str:
    return re.sub(r"[^\w.-]+", "-", text).strip("-.") or "none"


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
        given = base if base is not None else _read(next(c.file for c in choices if c.file is not None))
        try:
            for settings in (common, *(choice.settings for choice in choices)):
                for key, value in settings.items():
                    for whole in resolve(given, key):
                        given = config.override(given, whole, value)
            experiment = config.parse({**given, "name": label, **_grouped(given, name)})
        except ConfigError as error:
            raise ConfigError(f"{path}: run {label}: {str(error).removeprefix('--set ')}") from None
        yield Point(label, {key: value for c in choices for key, value in c.shown.items()}, experiment)


def resolve(given: Mapping[str, Any], path: str) -> list[str]:
    """The whole paths that a path in a sweep stands for; ConfigError if no experiment has such a key."""
    head, _, rest = path.partition(".")
    phases = given.get("phases")
    count = len(phases) if isinstance(phases, list) else 0
    if head == "phases" and rest.startswith("*."):
        return [f"phases.{i}.{rest[2:]}" for i in range(count)]
    if head in TOP:
        return [path]
    if head not in PHASE:
        raise ConfigError(f"{path}: neither an experiment nor a phase has {head!r}; {nearest(head, [*TOP, *PHASE])}")
    if count != 1:
        raise ConfigError(f"{path}: there are {count} phases; write phases.0.{path}, or phases.*.{path} for all")
    return [f"phases.0.{path}"]


def _grouped(given: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The runs of a sweep stand together in Weights & Biases."""
    tracking = given.get("tracking")
    if not isinstance(tracking, Mapping) or not isinstance(tracking.get("wandb"), Mapping):
        return {}
    return {"tracking": {**tracking, "wandb": {"group": name, **tracking["wandb"]}}}


def _chosen(points: tuple[Point, ...], only: tuple[str, ...]) -> tuple[Point, ...]:
    for pattern in only:
        if not any(fnmatchcase(point.label, pattern) for point in points):
            raise ConfigError(f"--only {pattern}: no run is called so; {nearest(pattern, [p.label for p in points])}")
    return tuple(p for p in points if not only or any(fnmatchcase(p.label, pattern) for pattern in only))
