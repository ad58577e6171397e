"""An experiment's file that names another, and then says what it has otherwise, by dotted path.

experiment: small.yaml                        # beside this file; it may name another in turn
name: fedvqa_fedprox
algorithm: {name: fedprox, mu: 0.01}          # as phases.0.algorithm: a phase's key stands for the only phase
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simfl.config.fields import shown
from simfl.config.overrides import with_settings
from simfl.config.yaml_text import read_yaml
from simfl.errors import ConfigError, nearest

OTHER = "experiment"  # the key that names the other file
SWEEP = (
    "experiments",
    "variants",
    "grid",
    "seeds",
    "set",
    "stop",
    "table",
)  # keys of a sweep's file, which is of many runs
Settings = dict[str, Any]  # dotted path -> value, the later over the earlier


def whole(path: Path) -> dict[str, Any]:
    """The plain content of an experiment's file, with what the files that it names say; ConfigError with its name."""
    chain = _chain(path)
    for file, given in chain:
        for key in [key for key in SWEEP if key in given]:
            raise ConfigError(f"{file}: {key!r} makes it a sweep, of many runs; use simfl sweep")
    found = dict(chain[0][1])
    for file, given in chain[1:]:
        try:
            found = with_settings(found, given)
        except ConfigError as error:
            raise ConfigError(f"{file}: {error}") from None
    return found


def settings(path: Path) -> Settings:
    """What a file sets: all of it if it names no other, else all but the whole experiment that it comes down to."""
    first, *others = _chain(path)
    return {str(key): value for _, given in others or [first] for key, value in given.items()}


def files(path: Path) -> list[Path]:
    """A file and those that it names under `experiment`, one after the other up to the whole experiment."""
    return [file for file, _ in reversed(_chain(path))]


def keys_of(path: Path, hint: str = "; simfl new --list shows experiments to begin with") -> dict[str, Any]:
    """The keys of a YAML file and their values; ConfigError for a file of anything else, `hint` for an empty one."""
    given = read_yaml(path)
    if given is None:
        raise ConfigError(f"{path}: nothing stands in it{hint}")
    if not isinstance(given, Mapping):
        raise ConfigError(f"{path}: {shown(given)} is not a mapping of keys to values")
    return {str(key): value for key, value in given.items()}


def named(file: Path, given: Any) -> Path:
    """The experiment's file that another file names under `experiment`; ConfigError if there is none."""
    return beside(file, given, f"{file}: {OTHER}")


def beside(file: Path, given: Any, where: str) -> Path:
    """The file that another one names, seen from its folder; ConfigError, beginning with `where`, if there is none."""
    if not isinstance(given, str):
        raise ConfigError(f"{where}: {shown(given)} is not the name of a file")
    other = file.parent / given
    if not other.is_file():
        others = [path.name for path in other.parent.glob("*.yaml") if path.name != file.name]
        raise ConfigError(f"{where}: there is no {other}" + (f"; {nearest(other.name, others)}" if others else ""))
    return other


def _chain(path: Path) -> list[tuple[Path, dict[str, Any]]]:
    """The files that lead to this one, the whole experiment first, and what each says but for the name of the other."""
    chain: list[tuple[Path, dict[str, Any]]] = []
    file, seen = path, set[Path]()
    while True:
        given = keys_of(file)
        chain.append((file, {key: value for key, value in given.items() if key != OTHER}))
        if OTHER not in given:
            return chain[::-1]
        seen.add(file.resolve())
        file = named(file, given[OTHER])
        if file.resolve() in seen:
            raise ConfigError(f"{path}: {OTHER}: it leads back to {file}")
