"""Partition specs: a YAML of what is divided and how, and the manifest that it becomes.

The same spec and data give the same bytes everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from simfl import config
from simfl.config import fields
from simfl.constraints import FileName, Seed
from simfl.data import leaks
from simfl.data.base import Data, Dataset, Split
from simfl.data.partition.manifest import Partition
from simfl.data.partition.partitioners import Partitioner
from simfl.errors import ConfigError, nearest


@dataclass(frozen=True)
class PartitionSpec:
    """What is divided among clients, and how."""

    name: FileName  # of the partition and its manifest
    data: Data  # a data set
    partition: Partitioner  # which client holds which examples
    split: str = "train"  # of the data set
    seed: Seed = 42  # of every random choice
    disjoint: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # what a split must not share with this one
    of: str | None = None  # the column that `simfl partition show` counts; null: label, answers or field


@dataclass(frozen=True)
class Built:
    """A partition with what it was made from."""

    spec: PartitionSpec
    dataset: Dataset
    partition: Partition

    @property
    def split(self) -> Split:
        """The split that was divided."""
        return self.dataset.splits[self.spec.split]

    @property
    def manifest(self) -> bytes:
        """Canonical JSON that ends in its own hash."""
        settings: Mapping[str, Any] = fields.written(self.spec.partition)
        spec = {**settings, "split": self.spec.split}
        return self.partition.manifest(spec, self.dataset.sha256, self.spec.seed)


def load(path: Path, overrides: Iterable[str] = ()) -> PartitionSpec:
    """The spec in a YAML file, after `path=value` overrides."""
    given = config.keys_of(path, hint="")
    for text in overrides:
        given = config.override(given, *config.assignment(text))
    spec: PartitionSpec = fields.build(PartitionSpec, given, "", "a partition spec")
    return spec


def build(spec: PartitionSpec, cache: Path) -> Built:
    """The partition of a spec. DataError if it shares with another split what the spec forbids."""
    dataset = spec.data.load(cache)
    if spec.split not in dataset.splits:
        raise ConfigError(f"split: {dataset.name} has no split {spec.split!r}; {nearest(spec.split, dataset.splits)}")
    leaks.refuse(dataset, spec.disjoint, spec.split)
    return Built(spec, dataset, spec.partition.split(dataset.splits[spec.split], spec.seed))
