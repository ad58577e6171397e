"""Clients of one data set each, as many as its documents are worth (Nguyen et al. 2024, federated document VQA).

A client is worth (all documents) / K. Each data set gets as many clients as that goes into its documents; clients still
missing go one each to the data sets in a fixed order. With the paper's 1,346, 10,194 and 13,163 documents this gives
its Table 2: K = 3: 1, 1, 1; K = 10: 1, 4, 5; K = 30: 2, 13, 15.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from simfl.data.base import Published, Split
from simfl.data.partition.base import Partitioner, column, units, value_of_unit
from simfl.data.partition.manifest import Partition, hold
from simfl.errors import ConfigError, DataError
from simfl.seeds import rng


@dataclass(frozen=True)
class DataSets(Partitioner):
    """Each client holds documents of one data set, dealt at random; how many clients one has follows from its size."""

    column: str = "dataset"  # of the examples or their documents
    order: tuple[str, ...] = ("wtq", "docvqa", "tabfact")  # who gets the missing clients first; others follow by name
    group_columns: ClassVar[tuple[str, ...]] = ("column",)

    def split(self, split: Split, seed: int) -> Partition:
        codes, names = column(split, self.column)
        unit, count = units(split, split_documents=False)
        value = value_of_unit(unit, count, codes, self.column)
        sizes = dict(zip(names.to_pylist(), np.bincount(value, minlength=len(names)).tolist(), strict=True))
        shares = clients_of(sizes, self.count(count, f"{count} documents"), self.order)
        owner, metas, first = np.empty(count, np.int64), list[dict[str, object]](), 0
        for name, clients in shares.items():
            mine = np.flatnonzero(value == names.index(name).as_py())
            dealt = np.minimum(np.arange(len(mine)) // (len(mine) // clients), clients - 1)
            owner[rng(seed, "partition", "data_sets", name).permutation(mine)] = first + dealt
            metas += [{"dataset": name}] * clients
            first += clients
        return hold(owner[unit], len(metas), (codes, names), metas)

    def expected(self, published: Published) -> np.ndarray | None:
        if self.column != "dataset" or not published.documents or self.clients is None:
            return super().expected(published)
        shares = clients_of(published.documents, self.clients, self.order)
        counts = published.by["dataset"]
        return np.concatenate([np.full(held, counts[name] / held) for name, held in shares.items()])


def clients_of(documents: Mapping[str, int], clients: int, order: Sequence[str]) -> dict[str, int]:
    """The number of clients of each data set with so many documents, in the order in which missing ones are given.

    ConfigError if a data set would have none, DataError if one has fewer documents than clients.
    """
    names = [*(n for n in order if n in documents), *sorted(set(documents) - set(order))]
    total = sum(documents.values())
    found = {name: documents[name] * clients // total for name in names}
    for name in names[: clients - sum(found.values())]:
        found[name] += 1
    for name, held in found.items():
        if held == 0:
            raise ConfigError(f"partition.clients: with {clients} in all the data set {name!r} gets none; ask for more")
        if documents[name] < held:
            raise DataError(f"partition: {documents[name]} documents of {name!r} for {held} clients")
    return found
