"""How unlike the clients of a partition are: sizes, what their examples are about, how far they are from one another.

All counts are over pairs (client, value), so a million clients cost no table of clients times values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from simfl.data.base import Dataset, Split
from simfl.data.partition.base import column
from simfl.data.partition.manifest import Partition

SHOWN = 60  # clients compared pairwise and drawn
WIDEST = 40  # values drawn; the others together
OTHERS = "others"


@dataclass(frozen=True, eq=False)
class Heterogeneity:
    """Numbers of each client, K in all; entropies and divergences in bits."""

    what: str  # the column whose values are counted
    sizes: np.ndarray  # int64 [K]: examples
    documents: np.ndarray  # int64 [K]: different documents; 0 where there are none
    groups: np.ndarray  # int64 [K]: named groups
    distinct: np.ndarray  # int64 [K]: different values
    entropy: np.ndarray  # float64 [K]: of the values
    divergence: np.ndarray  # float64 [K]: Jensen-Shannon, of the client from all examples
    pairwise: np.ndarray  # float64 [S, S]: Jensen-Shannon between the first clients
    heat: np.ndarray  # int64 [S, V]: examples of the first clients by value, the most frequent values first
    values: tuple[str, ...]  # [V]: the names of these values

    @property
    def mean_pairwise(self) -> float:
        """Over the pairs of different clients among the first."""
        several = len(self.pairwise) > 1
        return float(self.pairwise[~np.eye(len(self.pairwise), dtype=bool)].mean()) if several else 0.0


def describe(split: Split, partition: Partition, what: str | None = None) -> Heterogeneity:
    """The numbers for the values of a column; without one: label, else the first answer, else the kind of question."""
    what = what or _usual(split)
    codes, names = _values(split, what)
    clients = len(partition)
    held = np.repeat(np.arange(clients), partition.sizes)
    pairs, counts = np.unique(held * len(names) + codes[partition.order], return_counts=True)
    client, value = pairs // max(1, len(names)), pairs % max(1, len(names))
    shares = counts / partition.sizes[client]
    entropy = np.bincount(client, -shares * np.log2(shares), minlength=clients)
    rank = np.argsort(-np.bincount(value, counts, minlength=len(names)), kind="stable")
    heat, shown = _heat(client, value, counts, rank, min(clients, SHOWN))
    return Heterogeneity(
        what=what,
        sizes=partition.sizes,
        documents=_documents(split, partition, held),
        groups=partition.num_groups,
        distinct=np.bincount(client, minlength=clients),
        entropy=np.abs(entropy),
        divergence=_from_all(client, value, shares, counts, len(names), clients),
        pairwise=_pairwise(client, value, shares, min(clients, SHOWN), len(names)),
        heat=heat,
        values=tuple(names.take(pa.array(rank[:shown])).to_pylist()) + ((OTHERS,) if shown < len(names) else ()),
    )


def seen(
    dataset: Dataset, partition: Partition, columns: Sequence[str], train: str = "train"
) -> dict[str, dict[str, float]]:
    """For each other split and each of these columns: the share of its examples whose value some client has."""
    found: dict[str, dict[str, float]] = {}
    for name, split in dataset.splits.items():
        if name == train or not len(split):
            continue
        for what in columns:
            codes, values = _values(dataset.splits[train], what)
            known = set(values.take(pa.array(np.unique(codes[partition.order]))).to_pylist())
            other, names = _values(split, what)
            is_known = np.array([value in known for value in names.to_pylist()], bool)
            found.setdefault(name, {})[what] = float(is_known[other].mean())
    return found


def _usual(split: Split) -> str:
    return next((name for name in ("label", "answers", "text") if name in split.examples.column_names), "field")


def _values(split: Split, what: str) -> tuple[np.ndarray, pa.Array]:
    """Codes int64 [N] into names; of a list of answers the first counts."""
    examples = split.examples
    if what in examples.column_names and pa.types.is_list(examples.schema.field(what).type):
        first = [str(values[0]) if values else "" for values in examples[what].to_pylist()]
        examples = pa.table({what: pa.array(first, pa.string())})
        split = Split(examples)
    return column(split, what)


def _documents(split: Split, partition: Partition, held: np.ndarray) -> np.ndarray:
    if split.documents is None:
        return np.zeros(len(partition), np.int64)
    rows = split.examples["document"].to_numpy().astype(np.int64)[partition.order]
    pairs = np.unique(held * (split.documents.num_rows + 1) + rows)
    return np.bincount(pairs // (split.documents.num_rows + 1), minlength=len(partition))


def _from_all(
    client: np.ndarray, value: np.ndarray, shares: np.ndarray, counts: np.ndarray, values: int, clients: int
) -> np.ndarray:
    """JS(p, q) = H((p+q)/2) - (H(p) + H(q)) / 2, where a value that a client lacks adds H's term of q/2."""
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
    """-p log2 p, 0 at 0."""
    return -p * np.log2(np.where(p > 0, p, 1.0))


def _heat(
    client: np.ndarray, value: np.ndarray, counts: np.ndarray, rank: np.ndarray, clients: int
) -> tuple[np.ndarray, int]:
    """Examples of the first clients by value, frequent ones first, the rest in one column; how many stand alone."""
    alone = len(rank) if len(rank) <= WIDEST else WIDEST - 1
    place = np.empty(len(rank), np.int64)
    place[rank] = np.minimum(np.arange(len(rank)), alone)
    heat = np.zeros((clients, min(len(rank), WIDEST)), np.int64)
    first = client < clients
    np.add.at(heat, (client[first], place[value[first]]), counts[first])
    return heat, alone
