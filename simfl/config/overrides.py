"""Overrides of single settings by dotted path, such as `phases.0.local.learning_rate`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from simfl.config.fields import RENAMED_KEYS, shown
from simfl.config.key_index import hint_for
from simfl.errors import ConfigError
from simfl.experiment import Experiment, Phase
from simfl.yaml_text import parsed

TOP = tuple(f.name for f in fields(Experiment))
PHASE = tuple(f.name for f in fields(Phase))
COMPONENT_KEYS = {
    "adapters": "kind",
    "partition": "by",
    "server": "optimizer",
}  # field -> key with the name; else `name`


def assignment(text: str) -> tuple[str, object]:
    """Split `path=value`; the value is parsed as YAML."""
    path, equals, value = text.partition("=")
    if not (path and equals):
        raise ConfigError(f"--set {text}: write path=value, for example phases.0.rounds=2")
    return path, parsed(value, f"--set {path}")


def resolve(given: Mapping[str, object], path: str) -> list[str]:
    """Expand a path: a key of a phase stands for the only phase, and `phases.*` for all phases.

    Raises:
        ConfigError: Neither an experiment nor a phase has this key, or a key of a phase is ambiguous.
    """
    head, _, rest = path.partition(".")
    phases = given.get("phases")
    count = len(phases) if isinstance(phases, list) else 0
    if head == "phases" and rest.startswith("*."):
        return [f"phases.{i}.{rest[2:]}" for i in range(count)]
    if head in TOP:
        return [path]
    if head not in PHASE:
        _refuse(head, path)
    if count != 1:
        raise ConfigError(f"{path}: there are {count} phases; write phases.0.{path}, or phases.*.{path} for all")
    return [f"phases.0.{path}"]


def _refuse(head: str, path: str) -> None:
    if RENAMED_KEYS.get(head) in (*TOP, *PHASE):
        raise ConfigError(f"{head}: renamed to {RENAMED_KEYS[head]}")
    hint = hint_for(head, [*TOP, *PHASE])
    raise ConfigError(f"{path or repr(path)}: neither an experiment nor a phase has the key {head!r}; {hint}")


def overridden(given: Mapping[str, object], overrides: Iterable[str]) -> dict[str, object]:
    """Return a copy of `given` after `path=value` overrides, with paths as `resolve` expands them."""
    out: Any = dict(given)
    for text in overrides:
        path, value = assignment(text)
        try:
            paths = resolve(out, path)
        except ConfigError as error:
            raise ConfigError(f"--set {error}") from None
        for whole in paths:
            out = override(out, whole, value)
    return dict(out)


def with_settings(given: Mapping[str, object], settings: Mapping[str, object]) -> dict[str, object]:
    """Return a copy of `given` with the value of each path set in turn, with paths as `resolve` expands them.

    Each of new `phases` starts from the phase of `given` at its place, or the last one; see `_phase`.
    """
    out: Any = dict(given)
    for path, value in settings.items():
        if path == "phases" and isinstance(value, list) and (base := out.get("phases")) and isinstance(base, list):
            value = [_phase(base[min(i, len(base) - 1)], phase) for i, phase in enumerate(value)]
        for whole in resolve(out, path):
            try:
                out = override(out, whole, value)
            except ConfigError as error:
                raise ConfigError(str(error).removeprefix("--set ")) from None
    return dict(out)


def _phase(base: object, given: object) -> object:
    """Return a phase of a base with the settings of another phase, by name or path.

    A component of the same name as in the base, such as the objective, keeps the settings that are not given.
    """
    if not isinstance(base, Mapping) or not isinstance(given, Mapping):
        return given
    out: Any = dict(base)
    for path, value in given.items():
        name, before = COMPONENT_KEYS.get(str(path), "name"), out.get(path)
        same = isinstance(value, Mapping) and isinstance(before, Mapping) and name in value
        same = same and value[name] == before.get(name)
        out = override(out, str(path), {**before, **value} if same else value)
    return out


def override(given: object, path: str, value: object) -> Any:
    """Return a copy of `given` with `value` at a dotted path; a number in the path is a list index."""
    return _override(given, path.split("."), value, "")


def _override(given: object, path: list[str], value: object, at: str) -> object:
    if not path:
        return value
    head, *rest = path
    here = f"{at}.{head}".lstrip(".")
    if isinstance(given, list):
        if not (head.isdecimal() and int(head) < len(given)):
            raise ConfigError(f"--set {here}: {head!r} is not an index of the list; allowed: 0 to {len(given) - 1}")
        return [_override(item, rest, value, here) if i == int(head) else item for i, item in enumerate(given)]
    if given is None:
        given = {}
    if isinstance(given, str):  # the name of a component without settings
        given = {COMPONENT_KEYS.get(at.rpartition(".")[2], "name"): given}
    if not isinstance(given, Mapping):
        raise ConfigError(f"--set {here}: {at or 'the experiment'} is {shown(given)}, which has no settings")
    return {**given, head: _override(given.get(head), rest, value, here)}
