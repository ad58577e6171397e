"""YAML to `simfl.experiment`, or one line: where, what was given, what is allowed."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from simfl.config.fields import read, written
from simfl.config.inheritance import beside, files, keys_of, named, settings, whole
from simfl.config.overrides import assignment, overridden, override, resolve, with_settings
from simfl.config.rules import check
from simfl.config.yaml_text import dumped, read_yaml
from simfl.experiment import Experiment

__all__ = [
    "assignment",
    "beside",
    "dump",
    "files",
    "keys_of",
    "load",
    "named",
    "overridden",
    "override",
    "parse",
    "read_yaml",
    "resolve",
    "settings",
    "to_mapping",
    "whole",
    "with_settings",
]


def load(path: Path, overrides: Iterable[str] = ()) -> Experiment:
    """The experiment in a YAML file, which may name another, after `path=value` overrides."""
    return parse(overridden(whole(path), overrides))


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
    return dumped(to_mapping(experiment))
