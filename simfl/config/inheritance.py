"""Experiment files that extend another one: a base file, then settings by dotted path.

experiment: small.yaml                        # base file in the same folder; it may extend another in turn
name: fedvqa_fedprox
algorithm: {name: fedprox, mu: 0.01}          # short for phases.0.algorithm, if there is one phase
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from simfl.config.fields import shown
from simfl.config.overrides import with_settings
from simfl.errors import ConfigError, nearest
from simfl.yaml_text import read_yaml

BASE = "experiment"  # key that names the base file
SWEEP = ("experiments", "variants", "grid", "seeds", "set", "stop", "table", "search")  # keys that make a file a sweep
Settings = dict[str, object]  # dotted path -> value; later entries take precedence


def whole(path: Path) -> dict[str, object]:
    """Return the content of an experiment file, merged with its bases.

    Raises:
        ConfigError: A file of the chain cannot be read or is a sweep, or a path does not exist in its base.
    """
    chain = _chain(path)
    for file, given in chain:
        for key in [key for key in SWEEP if key in given]:
            raise ConfigError(f"{file}: {key!r} makes it a sweep, which has many runs; use simfl sweep")
    merged = dict(chain[0][1])
    for file, given in chain[1:]:
        try:
            merged = with_settings(merged, given)
        except ConfigError as error:
            raise ConfigError(f"{file}: {error}") from None
    return merged


def settings(path: Path) -> Settings:
    """Return the settings that a file and its bases change; all settings of a file that has no base."""
    root, *extensions = _chain(path)
    return {str(key): value for _, given in extensions or [root] for key, value in given.items()}


def files(path: Path) -> list[Path]:
    """Return a file and its bases, the root last."""
    return [file for file, _ in reversed(_chain(path))]


def keys_of(path: Path, hint: str = "; simfl new --list shows experiments to start from") -> dict[str, object]:
    """Return the keys and values of a YAML file.

    Raises:
        ConfigError: The file is empty (the message ends with `hint`) or not a mapping.
    """
    given = read_yaml(path)
    if given is None:
        raise ConfigError(f"{path}: the file is empty{hint}")
    if not isinstance(given, Mapping):
        raise ConfigError(f"{path}: {shown(given)} is not a mapping of keys to values")
    return {str(key): value for key, value in given.items()}


def base_file(file: Path, given: object) -> Path:
    """Return the base file that `file` names under `experiment`; ConfigError if it does not exist."""
    return relative_file(file, given, f"{file}: {BASE}")


def relative_file(file: Path, given: object, where: str) -> Path:
    """Resolve a file name relative to the folder of `file`.

    Raises:
        ConfigError: There is no such file; the message starts with `where`.
    """
    if not isinstance(given, str):
        raise ConfigError(f"{where}: {shown(given)} is not a file name")
    found = file.parent / given
    if not found.is_file():
        others = [path.name for path in found.parent.glob("*.yaml") if path.name != file.name]
        raise ConfigError(f"{where}: {found} does not exist" + (f"; {nearest(found.name, others)}" if others else ""))
    return found


def _chain(path: Path) -> list[tuple[Path, dict[str, object]]]:
    """Return the root, the files that extend it, and `path` last, each with its keys except the name of its base."""
    chain: list[tuple[Path, dict[str, object]]] = []
    file, seen = path, set[Path]()
    while True:
        given = keys_of(file)
        chain.append((file, {key: value for key, value in given.items() if key != BASE}))
        if BASE not in given:
            return chain[::-1]
        seen.add(file.resolve())
        file = base_file(file, given[BASE])
        if file.resolve() in seen:
            raise ConfigError(f"{path}: {BASE}: circular, it leads back to {file}")
