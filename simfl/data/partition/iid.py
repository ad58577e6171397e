"""The partition in which all clients are alike."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simfl.data.base import Split
from simfl.data.partition.base import Partitioner, units
from simfl.data.partition.manifest import Partition, hold
from simfl.seeds import rng


@dataclass(frozen=True)
class Iid(Partitioner):
    """Documents (or single examples) dealt at random in equal numbers."""

    split_documents: bool = False  # true: the questions of one document may go to several clients

    def split(self, split: Split, seed: int) -> Partition:
        unit, count = units(split, self.split_documents)
        clients = self.count(count, f"{count} units")
        owner = np.empty(count, np.int64)
        owner[rng(seed, "partition", "iid").permutation(count)] = np.arange(count) * clients // count
        return hold(owner[unit], clients)
