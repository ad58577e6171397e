"""Settings by dotted path, such as `phases.0.local.learning_rate`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from simfl.config.fields import shown
from simfl.config.yaml_text import parsed
from simfl.errors import ConfigError, nearest
from simfl.experiment import Experiment, Phase

TOP = tuple(f.name for f in fields(Experiment))
PHASE = tuple(f.name for f in fields(Phase))


def assignment(text: str) -> tuple[str, object]:
    """`path=value` taken apart; the value is YAML."""
    path, equals, value = text.partition("=")
    if not (path and equals):
        raise ConfigError(f"--set {text}: write path=value, for example phases.0.rounds=2")
    return path, parsed(value, f"--set {path}")


def resolve(given: Mapping[str, Any], path: str) -> list[str]:
    """The whole paths that a short one stands for; ConfigError if no experiment has such a key.

    A path may begin at a phase's key, which stands for the only phase; `phases.*` is all of them.
    """
    head, _, rest = path.partition(".")
    phases = given.get("phases")
    count = len(phases) if isinstance(phases, list) else 0
    if head == "phases" and rest.startswith("*."):
        return [f"phases.{i}.{rest[2:]}" for i in range(count)]
    if head in TOP:
        return [path]
    if head not in PHASE:
        raise ConfigError(
            f"{path or repr(path)}: neither an experiment nor a phase has {head!r}; {nearest(head, [*TOP, *PHASE])}"
        )
    if count != 1:
        raise ConfigError(f"{path}: there are {count} phases; write phases.0.{path}, or phases.*.{path} for all")
    return [f"phases.0.{path}"]


def overridden(given: Mapping[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """A copy of `given` after `path=value` overrides, the paths whole or short."""
    out: Any = dict(given)
    for text in overrides:
        path, value = assignment(text)
        try:
            wholes = resolve(out, path)
        except ConfigError as error:
            raise ConfigError(f"--set {error}") from None
        for whole in wholes:
            out = override(out, whole, value)
    return dict(out)


def with_settings(given: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of `given` with a value at each of these paths, whole or short, one after the other."""
    out: Any = dict(given)
    for path, value in settings.items():
        for whole in resolve(out, path):
            try:
                out = override(out, whole, value)
            except ConfigError as error:
                raise ConfigError(str(error).removeprefix("--set ")) from None
    return dict(out)


def override(given: Any, path: str, value: object) -> Any:
    """A copy of `given` with `value` at a dotted path; a number in the path is an index into a list."""
    return _override(given, path.split("."), value, "")


def _override(given: Any, path: list[str], value: object, at: str) -> Any:
    if not path:
        return value
    head, *rest = path
    here = f"{at}.{head}".lstrip(".")
    if isinstance(given, list):
        if not (head.isdecimal() and int(head) < len(given)):
            raise ConfigError(f"--set {here}: {head!r} is not an entry of the list; allowed: 0 to {len(given) - 1}")
        return [_override(item, rest, value, here) if i == int(head) else item for i, item in enumerate(given)]
    if given is None:
        given = {}
    if isinstance(given, str):  # a component's bare name gets a setting
        given = {_component_key(at): given}
    if not isinstance(given, Mapping):
        raise ConfigError(f"--set {here}: {at or 'the experiment'} is {shown(given)}, which has no settings")
    return {**given, head: _override(given.get(head), rest, value, here)}


def _component_key(path: str) -> str:
    """The key that names a component in the field at this path."""
    return {"adapters": "kind", "partition": "by", "server": "optimizer"}.get(path.rpartition(".")[2], "name")
