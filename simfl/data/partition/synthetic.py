"""Random partitions: IID, and synthetic heterogeneity of labels and sizes.

Dirichlet over labels as in Yurochkin et al. 2019 and Li et al. (NIID-Bench) 2022, shards as in McMahan et al. 2017,
quantity skew as in NIID-Bench. All keep documents whole unless `split_documents` is set.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np

from simfl.constraints import PositiveFloat, PositiveInt
from simfl.data.base import Split
from simfl.data.partition.base import Partitioner, column, units, value_of_unit
from simfl.data.partition.manifest import Partition
from simfl.errors import ConfigError
from simfl.seeds import rng

MAX_TRIES = 1000


@dataclass(frozen=True)
class Iid(Partitioner):
    """Documents, or single examples, assigned at random in equal numbers."""

    split_documents: bool = False  # true: questions about one document may belong to several clients

    def split(self, split: Split, seed: int) -> Partition:
        """Assign units to clients by a random permutation."""
        unit, count = units(split, self.split_documents)
        clients = self.num_clients(count, f"{count} units")
        owner = np.empty(count, np.int64)
        owner[rng(seed, "partition", "iid").permutation(count)] = np.arange(count) * clients // count
        return Partition.from_owners(owner[unit], clients)


@dataclass(frozen=True)
class Dirichlet(Partitioner):
    """Each value of a column is divided among the clients in proportions drawn from Dir(alpha).

    NIID-Bench is `balance: true, min_size: 10`.
    """

    column: str = "label"  # column of the examples or their documents
    alpha: PositiveFloat = 0.5  # small: each client has few values; large: equal distributions
    min_size: int = 1  # redraw until every client has this many examples (documents if they are kept whole)
    balance: bool = False  # true: clients that have an equal share already get nothing of the values that follow
    split_documents: bool = False  # true: questions about one document may belong to several clients

    def split(self, split: Split, seed: int) -> Partition:
        """Draw proportions until every client has `min_size` units. Raise ConfigError after `MAX_TRIES` draws."""
        _check_positive("alpha", self.alpha)
        unit, count = units(split, self.split_documents)
        clients = self.num_clients(_at_most(count, self.min_size), f"{count} units, min_size {self.min_size}")
        codes, names = column(split, self.column)
        value = value_of_unit(unit, count, codes, self.column)
        for attempt in range(MAX_TRIES):
            owner = self._draw(value, len(names), clients, rng(seed, "partition", "dirichlet", attempt))
            if np.bincount(owner, minlength=clients).min() >= self.min_size:
                return Partition.from_owners(owner[unit], clients)
        raise ConfigError(
            f"partition: {MAX_TRIES} draws of Dir({self.alpha}) left one of {clients} clients with fewer than "
            f"{self.min_size} units; increase alpha, or decrease clients or min_size"
        )

    def _draw(self, value: np.ndarray, num_values: int, clients: int, random: np.random.Generator) -> np.ndarray:
        owner = np.full(len(value), -1, np.int64)
        for v in range(num_values):
            members = random.permutation(np.flatnonzero(value == v))
            shares = random.dirichlet(np.full(clients, self.alpha))
            if self.balance:
                shares = _without_full(shares, np.bincount(owner[owner >= 0], minlength=clients), len(value))
            ends = np.cumsum(shares)[:-1]
            # a random offset gives every client a chance to get rare values
            quantiles = (np.arange(len(members)) + random.random()) / max(1, len(members))
            owner[members] = np.searchsorted(ends, quantiles, side="right")
        return owner


def _without_full(shares: np.ndarray, sizes: np.ndarray, count: int) -> np.ndarray:
    """Return shares [K] of clients with fewer units than an equal share of `count`; the others have 0."""
    is_open = sizes * len(sizes) < count
    kept = np.where(is_open, shares, 0.0)
    if not kept.sum() > 0:  # with a small alpha, all shares but one may underflow
        kept = np.where(is_open, 1.0, 0.0)
    return kept / kept.sum()


@dataclass(frozen=True)
class Shards(Partitioner):
    """Examples sorted by a column are cut into equal shards; each client gets some shards at random."""

    column: str = "label"  # column of the examples or their documents
    shards: PositiveInt = 2  # number per client
    split_documents: bool = False  # true: questions about one document may belong to several clients

    def split(self, split: Split, seed: int) -> Partition:
        """Sort units by value in random order within a value, and assign shards at random."""
        _check_positive("shards", self.shards)
        unit, count = units(split, self.split_documents)
        clients = self.num_clients(count // self.shards, f"{count} units in shards of at least one")
        value = value_of_unit(unit, count, column(split, self.column)[0], self.column)
        random = rng(seed, "partition", "shards")
        order = np.lexsort((random.permutation(count), value))
        shard = np.arange(count) * (clients * self.shards) // count
        owner = np.empty(count, np.int64)
        owner[order] = random.permutation(clients * self.shards)[shard] // self.shards
        return Partition.from_owners(owner[unit], clients)


@dataclass(frozen=True)
class Quantity(Partitioner):
    """Clients have different amounts of identically distributed data: sizes are drawn from Dir(alpha)."""

    alpha: PositiveFloat = 0.5  # small: few clients have nearly all examples
    min_size: int = 1  # examples that every client gets before the rest is divided (documents if they are kept whole)
    split_documents: bool = False  # true: questions about one document may belong to several clients

    def split(self, split: Split, seed: int) -> Partition:
        """Draw the sizes of the clients, and assign units at random."""
        _check_positive("alpha", self.alpha)
        unit, count = units(split, self.split_documents)
        clients = self.num_clients(_at_most(count, self.min_size), f"{count} units, min_size {self.min_size}")
        random = rng(seed, "partition", "quantity")
        rest = count - clients * self.min_size
        ends = np.floor(np.cumsum(random.dirichlet(np.full(clients, self.alpha))) * rest).astype(np.int64)
        ends[-1] = rest
        ends += self.min_size * np.arange(1, clients + 1)
        owner = np.empty(count, np.int64)
        owner[random.permutation(count)] = np.searchsorted(ends, np.arange(count), side="right")
        return Partition.from_owners(owner[unit], clients)


def _at_most(count: int, min_size: int) -> int:
    return count // min_size if min_size > 0 else sys.maxsize


def _check_positive(name: str, value: float) -> None:
    if not value > 0:
        raise ConfigError(f"partition.{name}: {value} given, it must be above 0")
