"""Axes of a sweep; each entry of an axis has a label, columns in tables, and settings."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from simfl import config
from simfl.config.fields import shown
from simfl.config.inheritance import Settings
from simfl.errors import ConfigError


@dataclass(frozen=True)
class AxisEntry:
    """One entry of an axis."""

    label: str  # part of the names of runs
    varied: Mapping[str, object]  # column of the tables -> value
    settings: Settings = field(default_factory=dict)
    file: Path | None = None  # experiment file, on an axis of experiments
    files: tuple[Path, ...] = ()  # files that the entry was read from


def axes_of(path: Path, given: Mapping[str, object]) -> Iterator[list[AxisEntry]]:
    """Yield the axes, slowest first: experiments, variants, the grid in the order of the file, seeds."""
    if "experiments" in given:
        yield _experiments(path, given["experiments"])
    if given.get("variants") is not None:
        yield _named(path, "variants", "variant", given["variants"])
    grid = given.get("grid") or {}
    if not isinstance(grid, Mapping):
        raise ConfigError(f"grid: {shown(grid)} is not a mapping of dotted paths to lists of values")
    short = short_names([part for key in grid for part in _paths(key)])
    for key, values in grid.items():
        if isinstance(values, Mapping):
            yield _named(path, f"grid.{key}", str(key), values)
        else:
            yield _listed(str(key), values, short)
    if "seeds" in given:
        if "seed" in grid:
            raise ConfigError("seeds: the grid has a seed axis too; give one of them")
        yield _listed("seed", given["seeds"], {"seed": "seed"}, where="seeds")


def grid_paths(given: Mapping[str, object]) -> list[str]:
    """Return the paths that vary in the grid, in the order in which they are set; named entries are left out."""
    grid = given.get("grid")
    lists = [key for key, values in grid.items() if isinstance(values, list)] if isinstance(grid, Mapping) else []
    return [path for key in lists for path in _paths(key)]


def _experiments(path: Path, given: object) -> list[AxisEntry]:
    if isinstance(given, Mapping):
        named = {str(name): config.relative_file(path, file, f"experiments.{name}") for name, file in given.items()}
    else:
        patterns = [_text(item, "experiments") for item in _list(given, "experiments", "files")]
        files = [file for pattern in patterns for file in _matching(path, pattern)]
        named = {file.stem: file for file in files}
        if len(named) < len(files):
            raise ConfigError("experiments: two files have the same name; name them, as in {a: x/run.yaml}")
    return [
        AxisEntry(_clean(name), {"experiment": name}, file=file, files=tuple(config.files(file)))
        for name, file in named.items()
    ]


def _matching(path: Path, pattern: str) -> list[Path]:
    if not any(character in pattern for character in "*?["):
        return [config.relative_file(path, pattern, "experiments")]
    found = sorted(file for file in path.parent.glob(pattern) if file.resolve() != path.resolve())
    if not found:
        raise ConfigError(f"experiments: no file matches {pattern!r} in {path.parent}")
    return found


def _named(path: Path, where: str, column: str, given: object) -> list[AxisEntry]:
    """Return the entries of a mapping from names to settings, or to YAML files with settings."""
    if isinstance(given, list) and all(isinstance(item, str) for item in given):
        given = {Path(item).stem: item for item in given}
    if not isinstance(given, Mapping) or not given:
        raise ConfigError(f"{where}: {shown(given)} is not a mapping of names to settings")
    return [_named_entry(path, f"{where}.{name}", column, str(name), settings) for name, settings in given.items()]


def _named_entry(path: Path, where: str, column: str, name: str, given: object) -> AxisEntry:
    """Return a named entry, whose settings are given directly or in a file."""
    files = tuple(config.files(config.relative_file(path, given, where))) if isinstance(given, str) else ()
    settings = config.settings(files[0]) if files else settings_of(given, where)
    return AxisEntry(_clean(name), {column: name}, settings, files=files)


def settings_of(given: object, where: str) -> Settings:
    """Check a mapping of dotted paths to values; None is an empty one."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise ConfigError(f"{where}: {shown(given)} is not a mapping of dotted paths to values")
    return {str(key): value for key, value in given.items()}


def _listed(key: str, values: object, short: Mapping[str, str], where: str = "") -> list[AxisEntry]:
    """Return the entries of a list of values, or of a list of lists for several paths."""
    where, paths = where or f"grid.{key}", _paths(key)
    entries: list[AxisEntry] = []
    for item in _list(values, where, "values"):
        row = [item] if len(paths) == 1 else item
        if not isinstance(row, list) or len(row) != len(paths):
            raise ConfigError(f"{where}: {shown(item)} is not a list of {len(paths)}, one for each of {key}")
        pairs = dict(zip(paths, row, strict=True))
        label = "_".join(_clean(f"{short[path]}-{word(value)}") for path, value in pairs.items())
        entries.append(AxisEntry(label, {short[p]: cell(v) for p, v in pairs.items()}, pairs))
        if any(entry.settings == pairs for entry in entries[:-1]):
            raise ConfigError(f"{where}: {shown(item)} is a duplicate")
    return entries


def _list(given: object, where: str, of: str) -> list[object]:
    if not isinstance(given, list) or not given:
        raise ConfigError(f"{where}: {shown(given)} is not a list of {of}; write [a, b]")
    return given


def _text(given: object, where: str) -> str:
    if not isinstance(given, str):
        raise ConfigError(f"{where}: {shown(given)} is not a file name")
    return given


def _paths(key: object) -> list[str]:
    return [part.strip() for part in str(key).split(",")]


def short_names(paths: list[str]) -> dict[str, str]:
    """Map each path to its shortest unambiguous end."""
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


def word(value: object) -> str:
    """Return a value as part of the name of a run; for a component, its name and then its settings."""
    if isinstance(value, Mapping):
        named = next((key for key in ("name", "kind", "by", "optimizer") if isinstance(value.get(key), str)), None)
        rest = [f"{key}-{word(item)}" for key, item in value.items() if key != named]
        return "-".join(([] if named is None else [str(value[named])]) + rest)
    if isinstance(value, list):
        return "-".join(word(item) for item in value)
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def cell(value: object) -> object:
    """Return a value as a cell of a table: a number or a text."""
    return value if isinstance(value, (int, float, str)) else word(value)


def _clean(text: str) -> str:
    return re.sub(r"[^\w.-]+", "-", text).strip("-.") or "none"
