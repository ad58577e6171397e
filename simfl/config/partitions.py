"""Partition specs: YAML files that say which data set is partitioned and how, and the manifest built from them.

The same spec and data give the same manifest, byte for byte, on every machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from simfl import config
from simfl.config import fields
from simfl.constraints import FileName, Seed
from simfl.data import leaks
from simfl.data.base import Data, Dataset, Split
from simfl.data.partition.holdout import assign
from simfl.data.partition.manifest import Partition
from simfl.data.partition.partitioners import Partitioner
from simfl.errors import ConfigError, nearest


@dataclass(frozen=True)
class PartitionSpec:
    """Partition spec: a data set, a split of it, and a partitioner."""

    name: FileName  # name of the partition and its manifest
    data: Data  # data set
    partition: Partitioner  # assignment of examples to clients
    split: str = "train"  # split that is partitioned
    seed: Seed = 42  # seed of all random choices
    disjoint: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # columns that other splits must not share
    of: str | None = None  # column that `simfl partition show` counts; null: label, answers or field


@dataclass(frozen=True)
class BuiltPartition:
    """A partition with its spec and its data set."""

    spec: PartitionSpec
    dataset: Dataset
    partition: Partition

    @property
    def split(self) -> Split:
        """Split that was partitioned."""
        return self.dataset.splits[self.spec.split]

    @property
    def manifest(self) -> bytes:
        """Canonical JSON that ends with its own hash."""
        settings: Mapping[str, object] = fields.written(self.spec.partition)
        spec = {**settings, "split": self.spec.split}
        return self.partition.manifest(spec, self.dataset.sha256, self.spec.seed)


def load(path: Path, overrides: Iterable[str] = ()) -> PartitionSpec:
    """Return the spec of a YAML file after `path=value` overrides."""
    given = config.keys_of(path, hint="")
    for text in overrides:
        given = config.override(given, *config.assignment(text))
    spec: PartitionSpec = fields.build(PartitionSpec, given, "", "a partition spec")
    return spec


def build(spec: PartitionSpec, cache: Path) -> BuiltPartition:
    """Load the data set and partition it.

    Raises:
        ConfigError: The data set does not have the split.
        DataError: The split shares with another one what `disjoint` forbids.
    """
    dataset = spec.data.load(cache)
    if spec.split not in dataset.splits:
        raise ConfigError(f"split: {dataset.name} has no split {spec.split!r}; {nearest(spec.split, dataset.splits)}")
    leaks.check_disjoint(dataset, spec.disjoint, spec.split)
    return BuiltPartition(spec, dataset, assign(spec.partition, dataset.splits[spec.split], spec.seed))
