"""Heterogeneity of the clients of a partition: sizes, distributions of a column, and divergences between clients.

All counts are over occurring pairs (client, value), so a million clients need no table of clients times values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from simfl.data.base import Dataset, Split
from simfl.data.partition.base import column
from simfl.data.partition.manifest import Partition

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


def measure(split: Split, partition: Partition, name: str | None = None) -> Heterogeneity:
    """Measure a partition by the values of a column.

    The default column is label, answers or text, whichever exists, else the kind of question. Of a list of answers the
    first one counts.
    """
    name = name or _default_column(split)
    codes, names = _values(split, name)
    clients = len(partition)
    owner = np.repeat(np.arange(clients), partition.sizes)
    pairs, counts = np.unique(owner * len(names) + codes[partition.order], return_counts=True)
    client, value = pairs // max(1, len(names)), pairs % max(1, len(names))
    shares = counts / partition.sizes[client]
    entropy = np.bincount(client, -shares * np.log2(shares), minlength=clients)
    rank = np.argsort(-np.bincount(value, counts, minlength=len(names)), kind="stable")
    heat, shown = _heat(client, value, counts, rank, min(clients, MAX_CLIENTS))
    return Heterogeneity(
        column=name,
        sizes=partition.sizes,
        documents=_documents(split, partition, owner),
        groups=partition.num_groups,
        distinct=np.bincount(client, minlength=clients),
        entropy=np.abs(entropy),
        divergence=_divergence(client, value, shares, counts, len(names), clients),
        pairwise=_pairwise(client, value, shares, min(clients, MAX_CLIENTS), len(names)),
        heat=heat,
        values=tuple(names.take(pa.array(rank[:shown])).to_pylist()) + ((OTHERS,) if shown < len(names) else ()),
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


def _documents(split: Split, partition: Partition, owner: np.ndarray) -> np.ndarray:
    if split.documents is None:
        return np.zeros(len(partition), np.int64)
    rows = split.examples["document"].to_numpy().astype(np.int64)[partition.order]
    pairs = np.unique(owner * (split.documents.num_rows + 1) + rows)
    return np.bincount(pairs // (split.documents.num_rows + 1), minlength=len(partition))


def _divergence(
    client: np.ndarray, value: np.ndarray, shares: np.ndarray, counts: np.ndarray, values: int, clients: int
) -> np.ndarray:
    """Return JS(p, q) = H((p+q)/2) - (H(p) + H(q)) / 2 of each client p and all examples q, float64 [K].

    A value that a client lacks contributes the term of q/2 to the first entropy.
    """
    total = np.bincount(value, counts, minlength=values)
    q = total / max(1, total.sum())
    alone = _term(q / 2)
    mixed = alone.sum() + np.bincount(client, _term((shares + q[value]) / 2) - alone[value], minlength=clients)
    own = np.bincount(client, _term(shares), minlength=clients)
    return np.clip(mixed - (own + _term(q).sum()) / 2, 0.0, 1.0)


def _pairwise(client: np.ndarray, value: np.ndarray, shares: np.ndarray, shown: int, values: int) -> np.ndarray:
    first = client < shown
    p = np.zeros((shown, values))
    p[client[first], value[first]] = shares[first]
    own = _term(p).sum(1)
    mixed = np.array([_term((p + row) / 2).sum(1) for row in p]).reshape(shown, shown)
    return np.clip(mixed - (own[:, None] + own) / 2, 0.0, 1.0)


def _term(p: np.ndarray) -> np.ndarray:
    """Return -p log2 p, with 0 at p = 0."""
    return -p * np.log2(np.where(p > 0, p, 1.0))


def _heat(
    client: np.ndarray, value: np.ndarray, counts: np.ndarray, rank: np.ndarray, clients: int
) -> tuple[np.ndarray, int]:
    """Return examples of the first clients by value, and the number of values with a column of their own.

    Frequent values come first; the rest share one column.
    """
    alone = len(rank) if len(rank) <= MAX_VALUES else MAX_VALUES - 1
    position = np.empty(len(rank), np.int64)
    position[rank] = np.minimum(np.arange(len(rank)), alone)
    heat = np.zeros((clients, min(len(rank), MAX_VALUES)), np.int64)
    first = client < clients
    np.add.at(heat, (client[first], position[value[first]]), counts[first])
    return heat, alone
