"""Heterogeneity of the clients of a partition: sizes, distributions of a column, and divergences between clients.

All counts are over occurring pairs (client, value), so a million clients need no table of clients times values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from simfl.data.base import Dataset, Split
from simfl.data.partition.base import column
from simfl.data.partition.manifest import Partition
from simfl.errors import SimflError

MAX_CLIENTS = 60  # clients that are compared pairwise and plotted
MAX_VALUES = 40  # values that are plotted; the others are one column
OTHERS = "others"


@dataclass(frozen=True, eq=False)
class Heterogeneity:
    """Measures of each of K clients; entropies and divergences are in bits."""

    column: str  # the column whose values are counted
    sizes: np.ndarray  # int64 [K]: examples
    documents: np.ndarray  # int64 [K]: distinct documents; 0 if there are none
    groups: np.ndarray  # int64 [K]: named groups
    distinct: np.ndarray  # int64 [K]: distinct values
    entropy: np.ndarray  # float64 [K]: of the values
    divergence: np.ndarray  # float64 [K]: Jensen-Shannon divergence between the client and all examples
    pairwise: np.ndarray  # float64 [S, S]: Jensen-Shannon divergence between the first clients
    heat: np.ndarray  # int64 [S, V]: examples of the first clients by value, the most frequent values first
    values: tuple[str, ...]  # [V]: the names of these values

    @property
    def mean_pairwise(self) -> float:
        """Return the mean pairwise divergence of the first clients, in bits."""
        several = len(self.pairwise) > 1
        return float(self.pairwise[~np.eye(len(self.pairwise), dtype=bool)].mean()) if several else 0.0


@dataclass(frozen=True)
class ValueCounts:
    """Examples of the first S clients of a partition by the V most frequent values of a column."""

    column: str
    values: tuple[str, ...]  # [V]
    heat: tuple[tuple[int, ...], ...]  # [S][V]
    mean_divergence: float  # Jensen-Shannon divergence between a client and all examples in bits, mean over all clients

    @staticmethod
    def from_json(content: dict[str, Any]) -> ValueCounts:
        """Return the counts that `to_json` wrote."""
        heat = tuple(map(tuple, content["heat"]))
        return ValueCounts(content["column"], tuple(content["values"]), heat, content["mean_divergence"])

    def to_json(self) -> dict[str, Any]:
        """Return the counts as JSON."""
        return asdict(self)


def count_values(split: Split, partition: Partition) -> ValueCounts | None:
    """Count the values of the default column of `measure`; None if no column has a value for each example."""
    try:
        pairs = _count_pairs(split, partition, _default_column(split))
    except SimflError:
        return None
    heat, values = pairs.heat(min(len(partition), MAX_CLIENTS))
    return ValueCounts(pairs.column, values, tuple(map(tuple, heat.tolist())), float(pairs.divergence().mean()))


def measure(split: Split, partition: Partition, name: str | None = None) -> Heterogeneity:
    """Measure a partition by the values of a column.

    The default column is label, answers or text, whichever exists, else the kind of question. Of a list of answers the
    first one counts.
    """
    pairs = _count_pairs(split, partition, name or _default_column(split))
    clients, shown = len(partition), min(len(partition), MAX_CLIENTS)
    entropy = np.bincount(pairs.client, -pairs.shares * np.log2(pairs.shares), minlength=clients)
    heat, values = pairs.heat(shown)
    return Heterogeneity(
        column=pairs.column,
        sizes=partition.sizes,
        documents=_documents(split, partition),
        groups=partition.num_groups,
        distinct=np.bincount(pairs.client, minlength=clients),
        entropy=np.abs(entropy),
        divergence=pairs.divergence(),
        pairwise=pairs.pairwise(shown),
        heat=heat,
        values=values,
    )


def known_values(
    dataset: Dataset, partition: Partition, columns: Sequence[str], train: str = "train"
) -> dict[str, dict[str, float]]:
    """Return, for each other split and each column, the share of examples whose value occurs at some client."""
    found: dict[str, dict[str, float]] = {}
    for name, split in dataset.splits.items():
        if name == train or not len(split):
            continue
        for column_name in columns:
            codes, values = _values(dataset.splits[train], column_name)
            known = set(values.take(pa.array(np.unique(codes[partition.order]))).to_pylist())
            other, names = _values(split, column_name)
            is_known = np.array([value in known for value in names.to_pylist()], bool)
            found.setdefault(name, {})[column_name] = float(is_known[other].mean())
    return found


def _default_column(split: Split) -> str:
    return next((name for name in ("label", "answers", "text") if name in split.examples.column_names), "field")


def _values(split: Split, name: str) -> tuple[np.ndarray, pa.Array]:
    """Return a column as codes int64 [N] into distinct values; of a list the first entry counts."""
    examples = split.examples
    if name in examples.column_names and pa.types.is_list(examples.schema.field(name).type):
        first = [str(values[0]) if values else "" for values in examples[name].to_pylist()]
        examples = pa.table({name: pa.array(first, pa.string())})
        split = Split(examples)
    return column(split, name)


@dataclass(frozen=True, eq=False)
class _Pairs:
    """The P occurring pairs of a client and a value of a column."""

    column: str
    names: pa.Array  # string: the values
    num_clients: int
    client: np.ndarray  # int64 [P]
    value: np.ndarray  # int64 [P]: positions in `names`
    counts: np.ndarray  # int64 [P]: examples
    shares: np.ndarray  # float64 [P]: of the client's examples

    def divergence(self) -> np.ndarray:
        """Return JS(p, q) = H((p+q)/2) - (H(p) + H(q)) / 2 of each client p and all examples q, float64 [K].

        A value that a client lacks contributes the term of q/2 to the first entropy.
        """
        client, shares, clients = self.client, self.shares, self.num_clients
        total = np.bincount(self.value, self.counts, minlength=len(self.names))
        q = total / max(1, total.sum())
        alone = _term(q / 2)
        changes = _term((shares + q[self.value]) / 2) - alone[self.value]
        mixed = alone.sum() + np.bincount(client, changes, minlength=clients)
        own = np.bincount(client, _term(shares), minlength=clients)
        return np.clip(mixed - (own + _term(q).sum()) / 2, 0.0, 1.0)

    def pairwise(self, shown: int) -> np.ndarray:
        """Return the divergence between each two of the first clients, float64 [S, S]."""
        first = self.client < shown
        p = np.zeros((shown, len(self.names)))
        p[self.client[first], self.value[first]] = self.shares[first]
        own = _term(p).sum(1)
        mixed = np.array([_term((p + row) / 2).sum(1) for row in p]).reshape(shown, shown)
        return np.clip(mixed - (own[:, None] + own) / 2, 0.0, 1.0)

    def heat(self, shown: int) -> tuple[np.ndarray, tuple[str, ...]]:
        """Return examples of the first clients by value, int64 [S, V], and the names of the values.

        Frequent values come first; the rest share one column.
        """
        names = self.names
        rank = np.argsort(-np.bincount(self.value, self.counts, minlength=len(names)), kind="stable")
        alone = len(rank) if len(rank) <= MAX_VALUES else MAX_VALUES - 1
        position = np.empty(len(rank), np.int64)
        position[rank] = np.minimum(np.arange(len(rank)), alone)
        heat = np.zeros((shown, min(len(rank), MAX_VALUES)), np.int64)
        first = self.client < shown
        np.add.at(heat, (self.client[first], position[self.value[first]]), self.counts[first])
        known = tuple(names.take(pa.array(rank[:alone])).to_pylist())
        return heat, (*known, OTHERS) if alone < len(names) else known


def _count_pairs(split: Split, partition: Partition, name: str) -> _Pairs:
    """Count the examples of each client by the values of a column."""
    codes, names = _values(split, name)
    owner = np.repeat(np.arange(len(partition)), partition.sizes)
    pairs, counts = np.unique(owner * len(names) + codes[partition.order], return_counts=True)
    client, value = pairs // max(1, len(names)), pairs % max(1, len(names))
    return _Pairs(name, names, len(partition), client, value, counts, counts / partition.sizes[client])


def _documents(split: Split, partition: Partition) -> np.ndarray:
    """Return the distinct documents of each client, int64 [K]; 0 if there are none."""
    if split.documents is None:
        return np.zeros(len(partition), np.int64)
    owner = np.repeat(np.arange(len(partition)), partition.sizes)
    rows = split.examples["document"].to_numpy().astype(np.int64)[partition.order]
    pairs = np.unique(owner * (split.documents.num_rows + 1) + rows)
    return np.bincount(pairs // (split.documents.num_rows + 1), minlength=len(partition))


def _term(p: np.ndarray) -> np.ndarray:
    """Return -p log2 p, with 0 at p = 0."""
    return -p * np.log2(np.where(p > 0, p, 1.0))
