"""Clients with one data set each, in proportion to its documents (Nguyen et al. 2024, federated document VQA).

A data set with n of N documents gets floor(n K / N) of K clients. The remaining clients go one each to the data sets in
a fixed order. With the 1,346, 10,194 and 13,163 documents of the paper this gives its Table 2: K = 3: 1, 1, 1; K = 10:
1, 4, 5; K = 30: 2, 13, 15.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from simfl.data.base import Published, Split
from simfl.data.partition.base import Partitioner, column, units, value_of_unit
from simfl.data.partition.manifest import Partition
from simfl.errors import ConfigError, DataError
from simfl.seeds import rng


@dataclass(frozen=True)
class DataSets(Partitioner):
    """Each client holds random documents of one data set; larger data sets get more clients."""

    column: str = "dataset"  # column of the examples or their documents
    order: tuple[str, ...] = (
        "wtq",
        "docvqa",
        "tabfact",
    )  # order in which remaining clients are given; others follow
    group_columns: ClassVar[tuple[str, ...]] = ("column",)

    def split(self, split: Split, seed: int) -> Partition:
        """Assign the documents of each data set to its clients in equal numbers; the last one gets the rest."""
        codes, names = column(split, self.column)
        unit, count = units(split, split_documents=False)
        value = value_of_unit(unit, count, codes, self.column)
        sizes = dict(zip(names.to_pylist(), np.bincount(value, minlength=len(names)).tolist(), strict=True))
        shares = clients_per_data_set(sizes, self.num_clients(count, f"{count} documents"), self.order)
        owner, metas, first = np.empty(count, np.int64), list[dict[str, object]](), 0
        for name, clients in shares.items():
            mine = np.flatnonzero(value == names.index(name).as_py())
            dealt = np.minimum(np.arange(len(mine)) // (len(mine) // clients), clients - 1)
            owner[rng(seed, "partition", "data_sets", name).permutation(mine)] = first + dealt
            metas += [{"dataset": name}] * clients
            first += clients
        return Partition.from_owners(owner[unit], len(metas), (codes, names), metas)

    def expected(self, published: Published) -> np.ndarray | None:
        """Divide the published examples of each data set equally among its clients."""
        if self.column != "dataset" or not published.documents or self.clients is None:
            return super().expected(published)
        shares = clients_per_data_set(published.documents, self.clients, self.order)
        counts = published.by["dataset"]
        return np.concatenate([np.full(clients, counts[name] / clients) for name, clients in shares.items()])


def clients_per_data_set(documents: Mapping[str, int], clients: int, order: Sequence[str]) -> dict[str, int]:
    """Return the number of clients of each data set, in the order in which the remaining ones are given.

    Args:
        documents: Number of documents of each data set.
        clients: K.
        order: Data sets that get the remaining clients first.

    Raises:
        ConfigError: A data set would have no client.
        DataError: A data set has fewer documents than clients.
    """
    names = [*(n for n in order if n in documents), *sorted(set(documents) - set(order))]
    total = sum(documents.values())
    found = {name: documents[name] * clients // total for name in names}
    for name in names[: clients - sum(found.values())]:
        found[name] += 1
    for name, count in found.items():
        if count == 0:
            raise ConfigError(f"partition.clients: {clients} requested, which leaves no client for data set {name!r}")
        if documents[name] < count:
            raise DataError(f"partition: {documents[name]} documents of {name!r} for {count} clients")
    return found
