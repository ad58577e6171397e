"""Partitions of made-up heterogeneity: labels and sizes unequal on purpose.

Dirichlet over labels as in Yurochkin et al. 2019 and Li et al. (NIID-Bench) 2022, shards as in McMahan et al. 2017,
quantity skew as in NIID-Bench. All keep documents whole unless told otherwise.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np

from simfl.constraints import Count, Positive
from simfl.data.base import Split
from simfl.data.partition.base import Partitioner, column, units, value_of_unit
from simfl.data.partition.manifest import Partition, hold
from simfl.errors import ConfigError
from simfl.seeds import rng

TRIES = 1000


@dataclass(frozen=True)
class Dirichlet(Partitioner):
    """Each value of a column is dealt to the clients by shares drawn from Dir(alpha)."""

    column: str = "label"  # of the examples or their documents
    alpha: Positive = 0.5  # small: each client sees few values; large: all alike
    min_size: int = 1  # drawn again until every client has this many examples (documents where they are kept whole)
    split_documents: bool = False  # true: the questions of one document may go to several clients

    def split(self, split: Split, seed: int) -> Partition:
        _positive("alpha", self.alpha)
        unit, count = units(split, self.split_documents)
        clients = self.count(_at_most(count, self.min_size), f"{count} units, min_size {self.min_size}")
        codes, names = column(split, self.column)
        value = value_of_unit(unit, count, codes, self.column)
        for attempt in range(TRIES):
            owner = self._deal(value, len(names), clients, rng(seed, "partition", "dirichlet", attempt))
            if np.bincount(owner, minlength=clients).min() >= self.min_size:
                return hold(owner[unit], clients)
        raise ConfigError(
            f"partition: {TRIES} draws of Dir({self.alpha}) left a client of {clients} with fewer than "
            f"{self.min_size}; raise alpha, lower clients or min_size"
        )

    def _deal(self, value: np.ndarray, num_values: int, clients: int, random: np.random.Generator) -> np.ndarray:
        owner = np.empty(len(value), np.int64)
        for v in range(num_values):
            members = random.permutation(np.flatnonzero(value == v))
            shares = random.dirichlet(np.full(clients, self.alpha))
            ends = np.cumsum(shares)[:-1]
            places = (np.arange(len(members)) + random.random()) / max(
                1, len(members)
            )  # so that rare values go to anyone
            owner[members] = np.searchsorted(ends, places, side="right")
        return owner


@dataclass(frozen=True)
class Shards(Partitioner):
    """Examples sorted by a column are cut into equal shards, and each client gets a few at random."""

    column: str = "label"  # of the examples or their documents
    shards: Count = 2  # per client
    split_documents: bool = False  # true: the questions of one document may go to several clients

    def split(self, split: Split, seed: int) -> Partition:
        _positive("shards", self.shards)
        unit, count = units(split, self.split_documents)
        clients = self.count(count // self.shards, f"{count} units in shards of at least one")
        value = value_of_unit(unit, count, column(split, self.column)[0], self.column)
        random = rng(seed, "partition", "shards")
        order = np.lexsort((random.permutation(count), value))
        shard = np.arange(count) * (clients * self.shards) // count
        owner = np.empty(count, np.int64)
        owner[order] = random.permutation(clients * self.shards)[shard] // self.shards
        return hold(owner[unit], clients)


@dataclass(frozen=True)
class Quantity(Partitioner):
    """Clients hold unlike amounts of like data: sizes drawn from Dir(alpha)."""

    alpha: Positive = 0.5  # small: few clients hold nearly everything
    min_size: int = 1  # given to every client before the rest is dealt; documents where they are kept whole
    split_documents: bool = False  # true: the questions of one document may go to several clients

    def split(self, split: Split, seed: int) -> Partition:
        _positive("alpha", self.alpha)
        unit, count = units(split, self.split_documents)
        clients = self.count(_at_most(count, self.min_size), f"{count} units, min_size {self.min_size}")
        random = rng(seed, "partition", "quantity")
        rest = count - clients * self.min_size
        ends = np.floor(np.cumsum(random.dirichlet(np.full(clients, self.alpha))) * rest).astype(np.int64)
        ends[-1] = rest
        ends += self.min_size * np.arange(1, clients + 1)
        owner = np.empty(count, np.int64)
        owner[random.permutation(count)] = np.searchsorted(ends, np.arange(count), side="right")
        return hold(owner[unit], clients)


def _at_most(count: int, min_size: int) -> int:
    return count // min_size if min_size > 0 else sys.maxsize


def _positive(name: str, value: float) -> None:
    if not value > 0:
        raise ConfigError(f"partition.{name}: {value} given, it must be above 0")
