"""Reading of experiment files; every error is one line: the path, the value, and what is allowed."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from simfl.config.fields import read, written
from simfl.config.inheritance import base_file, files, keys_of, relative_file, settings, whole
from simfl.config.overrides import assignment, overridden, override, resolve, with_settings
from simfl.config.rules import check
from simfl.experiment import Experiment
from simfl.yaml_text import dumped, read_yaml

__all__ = [
    "assignment",
    "base_file",
    "dump",
    "files",
    "keys_of",
    "load",
    "overridden",
    "override",
    "parse",
    "read_yaml",
    "relative_file",
    "resolve",
    "settings",
    "to_mapping",
    "whole",
    "with_settings",
]


def load(path: Path, overrides: Iterable[str] = ()) -> Experiment:
    """Return the experiment of a YAML file, which may extend another, after `path=value` overrides."""
    return parse(overridden(whole(path), overrides))


def parse(given: object) -> Experiment:
    """Return the experiment that a mapping describes; its components may be Python objects."""
    experiment: Experiment = read(Experiment, given, "")
    check(experiment)
    return experiment


def to_mapping(experiment: Experiment) -> dict[str, Any]:
    """Return the resolved experiment, defaults included; `parse` turns it back into an equal one."""
    mapping: dict[str, Any] = written(experiment)
    return mapping


def dump(experiment: Experiment) -> str:
    """Return `to_mapping` of an experiment as YAML."""
    return dumped(to_mapping(experiment))
