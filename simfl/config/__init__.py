"""YAML to `simfl.experiment`, or one line: where, what was given, what is allowed. Nothing else reads YAML."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from simfl.config.fields import read, shown, written
from simfl.config.rules import check
from simfl.errors import ConfigError
from simfl.experiment import Experiment


def load(path: Path, overrides: Iterable[str] = ()) -> Experiment:
    """The experiment in a YAML file, after `path=value` overrides."""
    given = read_yaml(path)
    for text in overrides:
        given = override(given, *assignment(text))
    return parse(given)


def parse(given: object) -> Experiment:
    """The experiment that a mapping describes; components may stand in it as objects."""
    experiment: Experiment = read(Experiment, given, "")
    check(experiment)
    return experiment


def to_mapping(experiment: Experiment) -> dict[str, Any]:
    """The resolved experiment, defaults included; `parse` of it gives an equal one."""
    mapping: dict[str, Any] = written(experiment)
    return mapping


def dump(experiment: Experiment) -> str:
    """`to_mapping` as YAML."""
    text = io.StringIO()
    _yaml().dump(to_mapping(experiment), text)
    return text.getvalue()


def read_yaml(path: Path) -> object:
    """The plain content of a YAML file."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not a text file in UTF-8") from None
    return _parsed(text, str(path))


def assignment(text: str) -> tuple[str, object]:
    """`path=value` taken apart; the value is YAML."""
    path, equals, value = text.partition("=")
    if not (path and equals):
        raise ConfigError(f"--set {text}: write path=value, for example phases.0.rounds=2")
    return path, _parsed(value, f"--set {path}")


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


def _yaml() -> YAML:
    yaml = YAML(typ="safe", pure=True)  # the pure reader follows YAML 1.2: 2e-4 is a number, `on` is a word
    yaml.default_flow_style = None  # innermost mappings and lists on one line
    yaml.width = 120
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]  # its hint is its default, None
    return yaml


def _parsed(text: str, where: str) -> object:
    try:
        return _yaml().load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        what = ", ".join(part for part in (error.context, error.problem) if part)
        raise ConfigError(f"{where}{place}: {what}") from None
    except YAMLError as error:
        raise ConfigError(f"{where}: {str(error).splitlines()[0]}") from None
