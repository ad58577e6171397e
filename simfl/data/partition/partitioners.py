"""Partitions defined by the data (provider, official clients, a natural column) or by a file, and the registry of all.

The DP guarantee of grouped updates needs each provider to belong to one client (PFL-DocVQA competition, 2024), so
`provider` and `official` reject splits in which a provider would have two clients.
"""

from __future__ import annotations

import heapq
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa

from simfl.constraints import PositiveInt
from simfl.data.base import DATA_SHA256, Published, Split
from simfl.data.partition.base import (
    Partitioner,
    check_document_owners,
    check_one_owner,
    column,
    selected_values,
)
from simfl.data.partition.manifest import Partition
from simfl.data.partition.synthetic import Iid
from simfl.errors import ConfigError, DataError
from simfl.registry import Registry

__all__ = ["META", "PARTITIONERS", "FromManifest", "Iid", "Natural", "Official", "Partition", "Partitioner", "Provider"]

META = b"simfl.clients"  # key of the examples' schema metadata: a JSON list of one mapping per official client


@dataclass(frozen=True)
class Provider(Partitioner):
    """Whole groups (providers) are assigned to clients, largest first, each to the client with fewest examples.

    Groups of equal size are taken in the order of their names, clients of equal load in their order. The seed has no
    effect.
    """

    column: str = "provider"  # column of the examples or their documents
    min_groups: PositiveInt = 1  # minimum number of groups per client
    group_columns: ClassVar[tuple[str, ...]] = ("column",)

    def split(self, split: Split, seed: int) -> Partition:
        """Assign groups greedily by size."""
        codes, names = column(split, self.column)
        if self.min_groups < 1:
            raise ConfigError(f"partition.min_groups: {self.min_groups} given, it must be at least 1")
        clients = self.num_clients(len(names) // self.min_groups, f"{len(names)} groups, min_groups {self.min_groups}")
        owner = _greedy(np.bincount(codes, minlength=len(names)), clients, self.min_groups)[codes]
        check_document_owners(split, owner)
        return Partition.from_owners(owner, clients, (codes, names))


def _greedy(sizes: np.ndarray, clients: int, min_groups: int) -> np.ndarray:
    """Return the client of each group.

    As soon as the remaining groups are just enough for the clients below `min_groups`, only these clients get groups.
    """
    owner = np.empty(len(sizes), np.int64)
    missing, needed, only_missing = [min_groups] * clients, min_groups * clients, False
    loads = [(0, client) for client in range(clients)]
    for left, group in zip(range(len(sizes), 0, -1), np.argsort(-sizes, kind="stable").tolist(), strict=True):
        if left == needed and not only_missing:
            only_missing = True
            loads = [(load, client) for load, client in loads if missing[client]]
            heapq.heapify(loads)
        load, client = heapq.heappop(loads)
        owner[group] = client
        needed -= missing[client] > 0
        missing[client] = max(0, missing[client] - 1)
        if missing[client] or not only_missing:
            heapq.heappush(loads, (load + int(sizes[group]), client))
    return owner


@dataclass(frozen=True)
class Official(Partitioner):
    """The clients defined by the authors of the data, from the column `client` of the examples."""

    groups: str | None = None  # column of the named groups; null: provider, if the data has it
    shared_groups: bool = False  # true: a group may have several clients, and there is no group-level guarantee
    group_columns: ClassVar[tuple[str, ...]] = ("groups",)

    def split(self, split: Split, seed: int) -> Partition:
        """Read the client of each example. Raise DataError if a client is empty or a group has several clients."""
        if "client" not in split.examples.column_names:
            raise ConfigError(
                "partition.by: official needs examples with a column 'client', which this data lacks; see iid, provider"
            )
        owner = _official_clients(split)
        clients = self.check_num_clients(int(owner.max(initial=-1)) + 1)
        empty = np.flatnonzero(np.bincount(owner[owner >= 0], minlength=clients) == 0)
        if len(empty):
            raise DataError(
                f"partition: official client {empty[0]} of {clients} has no example; names make clients"
                " by partition: {by: natural, column: client}"
            )
        groups = self._groups(split)
        if groups is not None and not self.shared_groups:
            check_one_owner(owner, *groups, kind="group")
        check_document_owners(split, owner)
        return Partition.from_owners(owner, clients, groups, _metas(split, clients))

    def expected(self, published: Published) -> np.ndarray | None:
        """Return the published sizes of the official clients."""
        if not published.clients:
            return super().expected(published)
        self.check_num_clients(len(published.clients))
        return np.array(published.clients, np.float64)

    def owners(self, split: Split) -> np.ndarray | None:
        """Return the column `client`, if the split has it and the clients have no groups of their own."""
        names = split.examples.column_names
        if "client" not in names or (self._groups(split) is not None and not self.shared_groups):
            return None
        return _official_clients(split)

    def _groups(self, split: Split) -> tuple[np.ndarray, pa.Array] | None:
        names = split.examples.column_names + (split.documents.column_names if split.documents is not None else [])
        if self.groups is None and "provider" not in names:
            return None
        codes, found = column(split, self.groups or "provider")
        return None if found.to_pylist() == [""] else (codes, found)  # no provider is known


def _official_clients(split: Split) -> np.ndarray:
    """Return the official client of each example, int64 [N]; −1: none."""
    clients = split.examples["client"]
    if not pa.types.is_integer(clients.type):
        raise DataError(
            f"partition: column 'client' has type {clients.type}, expected the numbers of clients from 0; names make"
            " clients by partition: {by: natural, column: client}"
        )
    found: np.ndarray = clients.fill_null(-1).to_numpy().astype(np.int64)
    return found


def _metas(split: Split, clients: int) -> tuple[dict[str, object], ...]:
    text = (split.examples.schema.metadata or {}).get(META)
    metas = tuple(json.loads(text)) if text else ()
    if metas and len(metas) != clients:
        raise DataError(f"partition: the data has metadata of {len(metas)} clients, but {clients} clients")
    return metas


@dataclass(frozen=True)
class Natural(Partitioner):
    """One client for each value of a column, in the order of the values."""

    column: str = "provider"  # column of the examples or their documents
    values: tuple[str, ...] = ()  # values to use, in this order; other examples are dropped; empty: all
    shared_documents: bool = False  # true: questions about one document may belong to several clients
    group_columns: ClassVar[tuple[str, ...]] = ("column",)
    example: ClassVar[Mapping[str, object]] = {}

    def split(self, split: Split, seed: int) -> Partition:
        """Assign each example to the client of its value."""
        codes, names = column(split, self.column)
        chosen = selected_values(self.column, names, self.values)
        number = {value: client for client, value in enumerate(chosen)}
        client_of = np.array([number.get(name, -1) for name in names.to_pylist()], np.int64)
        owner = client_of[codes] if len(codes) else codes
        if not self.shared_documents:
            check_document_owners(split, owner)
        return Partition.from_owners(owner, self.check_num_clients(len(chosen)), (codes, names))

    def expected(self, published: Published) -> np.ndarray | None:
        """Return the published number of examples of each value."""
        counts = published.by.get(self.column)
        if counts is None:
            return super().expected(published)
        chosen = self.values or sorted(counts)
        self.check_num_clients(len(chosen))
        return np.array([counts.get(value, 0) for value in chosen], np.float64)


@dataclass(frozen=True)
class FromManifest(Partitioner):
    """A partition saved by `simfl partition build`; a manifest made from other data is rejected."""

    path: str = ""  # the manifest; ~ and $VARIABLES are expanded
    example: ClassVar[Mapping[str, object]] = {"path": "manifest"}

    def split(self, split: Split, seed: int) -> Partition:
        """Read the manifest. Raise DataError if it cannot be read or was made from other data or another split."""
        if not self.path:
            raise ConfigError("partition.path: empty, the path of a manifest is needed")
        path = Path(os.path.expandvars(self.path)).expanduser()
        data_sha256 = (split.examples.schema.metadata or {}).get(DATA_SHA256)
        if data_sha256 is None:
            raise ConfigError("partition.by: manifest needs a data set with a content hash, which this one lacks")
        try:
            manifest = path.read_bytes()
        except OSError as error:
            raise DataError(f"{path}: {error.strerror or error}") from error
        partition = Partition.read(manifest, data_sha256.decode())
        last = int(np.append(partition.order, partition.held_out_order).max(initial=-1))
        if last >= len(split):
            raise DataError(f"{path}: contains row {last}, the split has {len(split)}; it was made for another split")
        self.check_num_clients(len(partition))
        return partition


PARTITIONERS: Registry[Partitioner] = Registry(
    {
        "iid": "simfl.data.partition.synthetic:Iid",
        "data_sets": "simfl.data.partition.by_data_set:DataSets",
        "provider": "simfl.data.partition.partitioners:Provider",
        "official": "simfl.data.partition.partitioners:Official",
        "natural": "simfl.data.partition.partitioners:Natural",
        "dirichlet": "simfl.data.partition.synthetic:Dirichlet",
        "shards": "simfl.data.partition.synthetic:Shards",
        "rows": "simfl.data.partition.by_hand:ByHand",
        "file": "simfl.data.partition.from_file:FromFile",
        "quantity": "simfl.data.partition.synthetic:Quantity",
        "nested": "simfl.data.partition.nested:Nested",
        "subsample": "simfl.data.partition.nested:Subsample",
        "answer_lists": "simfl.data.partition.nested:AnswerLists",
        "manifest": "simfl.data.partition.partitioners:FromManifest",
    }
)
