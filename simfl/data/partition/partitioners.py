"""Partitions that follow what the data says (provider, official clients, a natural column), and the table of all.

The DP guarantee of grouped updates needs each provider to belong to one client (PFL-DocVQA competition, 2024), so
`provider` and `official` refuse a split in which one would be in two.
"""

from __future__ import annotations

import heapq
import json
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa

from simfl.constraints import Count
from simfl.data.base import Published, Split
from simfl.data.partition.base import (
    Partitioner,
    column,
    refuse_shared,
    refuse_shared_documents,
    values_of,
)
from simfl.data.partition.iid import Iid
from simfl.data.partition.manifest import Partition, hold
from simfl.errors import ConfigError, DataError
from simfl.registry import Registry

__all__ = ["META", "PARTITIONERS", "Iid", "Natural", "Official", "Partition", "Partitioner", "Provider"]

META = b"simfl.clients"  # key of the examples' schema metadata: a JSON list of one mapping per official client


@dataclass(frozen=True)
class Provider(Partitioner):
    """Whole groups (providers) to clients, biggest first, each to the client with fewest examples so far.

    Equal sizes are taken in the order of their names, equal loads in that of the clients: the seed has no part in it.
    """

    column: str = "provider"  # of the examples or their documents
    min_groups: Count = 1  # every client gets at least this many
    group_columns: ClassVar[tuple[str, ...]] = ("column",)

    def split(self, split: Split, seed: int) -> Partition:
        codes, names = column(split, self.column)
        if self.min_groups < 1:
            raise ConfigError(f"partition.min_groups: {self.min_groups} given, it must be at least 1")
        clients = self.count(len(names) // self.min_groups, f"{len(names)} groups, min_groups {self.min_groups}")
        owner = _greedy(np.bincount(codes, minlength=len(names)), clients, self.min_groups)[codes]
        refuse_shared_documents(split, owner)
        return hold(owner, clients, (codes, names))


def _greedy(sizes: np.ndarray, clients: int, min_groups: int) -> np.ndarray:
    """The client of each group; once no more groups are left than the poor clients need, the poor alone are served."""
    owner = np.empty(len(sizes), np.int64)
    missing, needed, poor_only = [min_groups] * clients, min_groups * clients, False
    loads = [(0, client) for client in range(clients)]
    for left, group in zip(range(len(sizes), 0, -1), np.argsort(-sizes, kind="stable").tolist(), strict=True):
        if left == needed and not poor_only:
            poor_only = True
            loads = [(load, client) for load, client in loads if missing[client]]
            heapq.heapify(loads)
        load, client = heapq.heappop(loads)
        owner[group] = client
        needed -= missing[client] > 0
        missing[client] = max(0, missing[client] - 1)
        if missing[client] or not poor_only:
            heapq.heappush(loads, (load + int(sizes[group]), client))
    return owner


@dataclass(frozen=True)
class Official(Partitioner):
    """The clients that the data's authors made, from the column `client` of the examples."""

    groups: str | None = None  # column of the named groups; null: provider where the data has it
    shared_groups: bool = False  # true: a group may be in several clients, and no group-level guarantee holds
    group_columns: ClassVar[tuple[str, ...]] = ("groups",)

    def split(self, split: Split, seed: int) -> Partition:
        if "client" not in split.examples.column_names:
            raise ConfigError(
                "partition.by: official needs examples with a column 'client'; allowed here: iid, provider"
            )
        owner = split.examples["client"].fill_null(-1).to_numpy().astype(np.int64)
        clients = self.count_is(int(owner.max(initial=-1)) + 1)
        empty = np.flatnonzero(np.bincount(owner[owner >= 0], minlength=clients) == 0)
        if len(empty):
            raise DataError(f"partition: official client {empty[0]} of {clients} has no example")
        groups = self._groups(split)
        if groups is not None and not self.shared_groups:
            refuse_shared(owner, *groups, what="group")
        refuse_shared_documents(split, owner)
        return hold(owner, clients, groups, _metas(split, clients))

    def expected(self, published: Published) -> np.ndarray | None:
        if not published.clients:
            return super().expected(published)
        self.count_is(len(published.clients))
        return np.array(published.clients, np.float64)

    def _groups(self, split: Split) -> tuple[np.ndarray, pa.Array] | None:
        names = split.examples.column_names + (split.documents.column_names if split.documents is not None else [])
        if self.groups is None and "provider" not in names:
            return None
        codes, found = column(split, self.groups or "provider")
        return None if found.to_pylist() == [""] else (codes, found)  # nobody's provider is told


def _metas(split: Split, clients: int) -> tuple[dict[str, object], ...]:
    text = (split.examples.schema.metadata or {}).get(META)
    metas = tuple(json.loads(text)) if text else ()
    if metas and len(metas) != clients:
        raise DataError(f"partition: the data describes {len(metas)} clients and has {clients}")
    return metas


@dataclass(frozen=True)
class Natural(Partitioner):
    """One client for each value of a column, in the order of the values."""

    column: str = "provider"  # of the examples or their documents
    values: tuple[str, ...] = ()  # the clients and their order; examples with other values are nobody's; none: all
    shared_documents: bool = False  # true: questions on one document may be of several clients
    group_columns: ClassVar[tuple[str, ...]] = ("column",)

    def split(self, split: Split, seed: int) -> Partition:
        codes, names = column(split, self.column)
        chosen = values_of(self.column, names, self.values)
        place = {value: client for client, value in enumerate(chosen)}
        client_of = np.array([place.get(name, -1) for name in names.to_pylist()], np.int64)
        owner = client_of[codes] if len(codes) else codes
        if not self.shared_documents:
            refuse_shared_documents(split, owner)
        return hold(owner, self.count_is(len(chosen)), (codes, names))

    def expected(self, published: Published) -> np.ndarray | None:
        counts = published.by.get(self.column)
        if counts is None:
            return super().expected(published)
        chosen = self.values or sorted(counts)
        self.count_is(len(chosen))
        return np.array([counts.get(value, 0) for value in chosen], np.float64)


PARTITIONERS: Registry[Partitioner] = Registry(
    {
        "iid": "simfl.data.partition.iid:Iid",
        "data_sets": "simfl.data.partition.by_data_set:DataSets",
        "provider": "simfl.data.partition.partitioners:Provider",
        "official": "simfl.data.partition.partitioners:Official",
        "natural": "simfl.data.partition.partitioners:Natural",
        "dirichlet": "simfl.data.partition.skew:Dirichlet",
        "shards": "simfl.data.partition.skew:Shards",
        "quantity": "simfl.data.partition.skew:Quantity",
        "nested": "simfl.data.partition.nested:Nested",
        "subsample": "simfl.data.partition.nested:Subsample",
        "answer_lists": "simfl.data.partition.nested:AnswerLists",
        "manifest": "simfl.data.partition.from_manifest:FromManifest",
    }
)
