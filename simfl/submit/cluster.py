"""Kinds of clusters to which a job can be submitted, and profile files that describe a cluster."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import ClassVar

from simfl import config
from simfl.config.fields import build
from simfl.errors import ConfigError, nearest
from simfl.registry import Registry
from simfl.submit.request import Request

PROFILE, KIND = "cluster", "to"  # key of a profile file; key of the kind of cluster
KINDS = ("ray://HOST", "http://HOST:8265", "auto", "slurm", "kuberay")


class Cluster(ABC):
    """A cluster; the fields of a subclass are its settings, in a profile and as options of `simfl submit`."""

    example: ClassVar[Mapping[str, object]] = {}  # settings for `simfl.contract.check`

    @abstractmethod
    def shown(self, request: Request) -> str:
        """Return the job as it would be submitted, without the values of environment variables."""

    @abstractmethod
    def submit(self, request: Request, log: Callable[[str], None], follow: bool) -> int:
        """Submit the job; with `follow`, print its log until it ends.

        Returns:
            Exit code: 0 completed or not followed, 1 failed, 130 stopped or no longer followed.
        """


CLUSTERS: Registry[Cluster] = Registry(
    {
        "kuberay": "simfl.submit.kuberay:KubeRay",
        "ray": "simfl.submit.ray_job:RunningRay",
        "slurm": "simfl.submit.slurm:Slurm",
    }
)


def cluster_of(given: Mapping[str, object], path: str = PROFILE) -> Cluster:
    """Build a cluster from its kind, under the key `to`, and its settings.

    Raises:
        ConfigError: The kind is unknown, or a setting is unknown, missing or out of range.
    """
    settings = dict(given)
    kind = settings.pop(KIND, None)
    if _is_address(kind):
        settings["address"] = kind
    found: Cluster = build(_class_of(kind), settings, path, str(kind))
    return found


def fields_of(kind: object) -> tuple[str, ...]:
    """Return the settings of a kind of cluster.

    Raises:
        ConfigError: There is no such kind.
    """
    return tuple(field.name for field in fields(_class_of(kind)))


def _class_of(kind: object) -> type:
    """Return the class of a kind, or of an address of Ray."""
    if kind is None:
        raise ConfigError(f"--{KIND}: missing; give {', '.join(KINDS)}")
    if _is_address(kind):
        kind = "ray"
    if not isinstance(kind, str) or kind not in CLUSTERS:
        raise ConfigError(f"--{KIND}: unknown {kind!r}; allowed: {', '.join(KINDS)}")
    return CLUSTERS[kind]


def _is_address(kind: object) -> bool:
    return kind == "auto" or (isinstance(kind, str) and "://" in kind)


def read_profile(path: Path) -> dict[str, object]:
    """Return the settings of a cluster from a YAML file with the single key `cluster`.

    Raises:
        ConfigError: The file cannot be read, or holds anything else.
    """
    content = config.read_yaml(path)
    if not isinstance(content, dict) or PROFILE not in content:
        raise ConfigError(f"{path}: holds no mapping with the key {PROFILE!r}")
    for key in content:
        if key != PROFILE:
            raise ConfigError(f"{path}: unknown key {key!r}; {nearest(str(key), [PROFILE])}")
    settings = content[PROFILE]
    if not isinstance(settings, dict):
        raise ConfigError(f"{path}: {PROFILE}: give a mapping of settings")
    return settings
