"""Partitions built from other partitions: several clients per group, fewer examples, lists of answers.

Chen et al. 2024 (FedDAT) have 5 to 25 clients on 5 tasks with about 2,500 examples each; each client knows its 100 most
frequent answers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import pyarrow as pa

from simfl.constraints import Fraction, PositiveInt
from simfl.data.base import Published, Split
from simfl.data.partition.base import Partitioner, check_document_owners, column, selected_values
from simfl.data.partition.manifest import Partition
from simfl.data.partition.synthetic import Iid
from simfl.errors import ConfigError, DataError
from simfl.seeds import rng, seed_for


@dataclass(frozen=True)
class Nested(Partitioner):
    """The examples of each value of a column are divided among separate clients by another partition."""

    column: str = "provider"  # column of the examples or their documents
    values: tuple[str, ...] = ()  # values to use, in this order; empty: all
    inner: Partitioner = field(default_factory=lambda: Iid(clients=5))  # the partition of each value
    shared_documents: bool = False  # true: questions about one document may belong to several clients
    group_columns: ClassVar[tuple[str, ...]] = ("column",)
    example: ClassVar[Mapping[str, object]] = {}

    def split(self, split: Split, seed: int) -> Partition:
        """Partition the examples of each value by `inner`, with a seed of its own."""
        codes, names = column(split, self.column)
        code_of = {name: code for code, name in enumerate(names.to_pylist())}
        owner, group = np.full(len(codes), -1, np.int64), np.full(len(codes), -1, np.int64)
        group_names: list[pa.Array] = []
        metas: list[dict[str, object]] = []
        for value in selected_values(self.column, names, self.values):
            rows = np.flatnonzero(codes == code_of[value])
            part = self.inner.split(Split(split.examples.take(rows), split.documents), seed_for(seed, "nested", value))
            client, within, found = _owners(part, len(rows), value)
            kept = client >= 0
            owner[rows[kept]] = client[kept] + len(metas)
            group[rows[kept]] = within[kept] + sum(map(len, group_names))
            group_names.append(found)
            metas += [part.meta(k) | {self.column: value} for k in range(len(part))]
        if not self.shared_documents:
            check_document_owners(split, owner)
        return Partition.from_owners(
            owner, self.check_num_clients(len(metas)), (group, pa.concat_arrays(group_names)), metas
        )

    def expected(self, published: Published) -> np.ndarray | None:
        """Return the expectation of `inner` for each value."""
        counts = published.by.get(self.column)
        if counts is None:
            return super().expected(published)
        parts = [self.inner.expected(Published(counts.get(value, 0))) for value in self.values or sorted(counts)]
        known = [part for part in parts if part is not None]
        return np.concatenate(known) if len(known) == len(parts) else None


def _owners(part: Partition, count: int, value: str) -> tuple[np.ndarray, np.ndarray, pa.Array]:
    """Return client and group of each row, int64 [count], and the names of the groups (the value if there are none)."""
    client, group = np.full(count, -1, np.int64), np.zeros(count, np.int64)
    client[part.order] = np.repeat(np.arange(len(part)), part.sizes)
    if not len(part.group_names):
        return client, group, pa.array([value])
    group[part.order] = np.repeat(np.arange(len(part.group_names)), np.diff(part.group_starts))
    return client, group, part.group_names


@dataclass(frozen=True)
class Subsample(Partitioner):
    """Another partition with a random subset of each client's examples, or of its values of a column."""

    of: Partitioner = field(default_factory=Iid)  # the partition
    examples: PositiveInt | None = None  # maximum per client
    fraction: Fraction | None = None  # or share of each client's examples, at least one
    column: str | None = None  # with fraction: share of each client's values of this column, such as provider
    draw: int | None = None  # with column: number of the draw; null: the seed of the run
    example: ClassVar[Mapping[str, object]] = {"of": {"by": "iid", "clients": 5}, "fraction": 0.5}

    def __post_init__(self) -> None:
        """Raise ConfigError for settings without effect."""
        if self.column is not None and self.examples is not None:
            raise ConfigError("partition.examples: has no effect with partition.column; allowed: partition.fraction")
        if self.draw is not None and self.column is None:
            raise ConfigError("partition.draw: has no effect without partition.column")

    def plain(self) -> dict[str, object]:
        """Return the settings; those that were added later only if given, so that manifests keep their hash."""
        later = ("column", "draw")
        return {name: value for name, value in super().plain().items() if name not in later or value is not None}

    def split(self, split: Split, seed: int) -> Partition:
        """Sample rows, or values of a column, of each client of `of`."""
        if (self.examples is None) == (self.fraction is None):
            raise ConfigError("partition.examples, partition.fraction: exactly one of the two is needed")
        whole = self.of.split(split, seed)
        self.check_num_clients(len(whole))
        if self.column is not None:
            return select_rows(whole, self._chosen_values(split, whole, seed if self.draw is None else self.draw))
        owner = np.repeat(np.arange(len(whole)), whole.sizes)
        drawn = np.lexsort((rng(seed, "partition", "subsample").random(len(owner)), owner))
        rank = np.arange(len(owner)) - whole.starts[owner]
        share = np.full(len(whole), self.examples) if self.examples is not None else self._share(whole.sizes)
        kept = np.zeros(len(owner), bool)
        kept[drawn[rank < share[owner]]] = True
        return select_rows(whole, kept)

    def expected(self, published: Published) -> np.ndarray | None:
        """Return the reduced expectation of `of`."""
        whole = self.of.expected(published)
        if whole is None:
            return None
        return np.minimum(whole, self.examples) if self.examples is not None else self._share(whole)

    def owners(self, split: Split) -> np.ndarray | None:
        """Return the owners of `of`."""
        return self.of.owners(split)

    def _chosen_values(self, split: Split, whole: Partition, draw: int) -> np.ndarray:
        """Return the entries of `order` whose value was drawn, bool [n].

        Each value has a random number that depends on the draw and its name alone. A client keeps those with the
        smallest numbers, so its count of values is the same in every draw.
        """
        assert self.column is not None
        codes, names = column(split, self.column)
        number = np.array([seed_for(draw, "partition", "subsample", name) for name in names.to_pylist()], np.int64)
        owner, code = np.repeat(np.arange(len(whole)), whole.sizes), codes[whole.order]
        pairs, of_row = np.unique(owner * max(1, len(names)) + code, return_inverse=True)
        client, value = np.divmod(pairs, max(1, len(names)))
        sizes = np.bincount(client, minlength=len(whole))
        ordered = np.lexsort((number[value], client))
        rank = np.empty(len(pairs), np.int64)
        rank[ordered] = np.arange(len(pairs)) - (np.cumsum(sizes) - sizes)[client[ordered]]
        chosen: np.ndarray = (rank < self._share(sizes)[client])[of_row]
        return chosen

    def _share(self, sizes: np.ndarray) -> np.ndarray:
        return np.maximum(1, np.round((self.fraction or 0.0) * sizes)).astype(np.int64)


@dataclass(frozen=True)
class AnswerLists(Partitioner):
    """Another partition whose clients have lists of their most frequent answers, in their metadata."""

    of: Partitioner = field(default_factory=Iid)  # the partition
    answers: PositiveInt = 100  # maximum length of a list
    only: bool = False  # true: drop examples whose first answer is not in their client's list
    example: ClassVar[Mapping[str, object]] = {"of": {"by": "iid", "clients": 5}}

    def split(self, split: Split, seed: int) -> Partition:
        """Add the list of most frequent answers to the metadata of each client of `of`."""
        whole = self.of.split(split, seed)
        self.check_num_clients(len(whole))
        if "answers" not in split.examples.column_names:
            raise ConfigError("partition.by: answer_lists needs examples with a column 'answers'")
        first = [answers[0] if answers else None for answers in split.examples["answers"].to_pylist()]
        metas, kept = [], np.ones(len(whole.order), bool)
        for client in range(len(whole)):
            mine = [first[row] for row in whole.rows(client)]
            listed = _frequent(mine, self.answers)
            metas.append(whole.meta(client) | {"answers": listed})
            if self.only:
                known = set(listed)
                kept[whole.starts[client] : whole.starts[client + 1]] = [answer in known for answer in mine]
        return replace(select_rows(whole, kept), metas=tuple(metas))

    def expected(self, published: Published) -> np.ndarray | None:
        """Return the expectation of the inner partition, as if every example were kept."""
        return self.of.expected(published)

    def owners(self, split: Split) -> np.ndarray | None:
        """Return the owners of `of`."""
        return self.of.owners(split)


def _frequent(answers: Sequence[str | None], most: int) -> list[str]:
    counts = Counter(answer for answer in answers if answer is not None)
    return sorted(counts, key=lambda answer: (-counts[answer], answer))[:most]


def select_rows(whole: Partition, kept: np.ndarray) -> Partition:
    """Return the partition with the kept entries of `order`, bool [n]. Empty groups are dropped.

    Raises:
        DataError: A client would have no examples left.
    """
    before = np.concatenate([[0], np.cumsum(kept)]).astype(np.int64)
    starts = before[whole.starts]
    empty = np.flatnonzero((np.diff(starts) == 0) & (whole.sizes > 0))
    if len(empty):
        raise DataError(f"partition: client {empty[0]} of {len(whole)} has no examples left")
    if not len(whole.group_names):
        return replace(whole, order=whole.order[kept], starts=starts)
    group_starts = before[whole.group_starts]
    full = np.diff(group_starts) > 0
    clients = np.concatenate([[0], np.cumsum(full)])[whole.group_clients].astype(np.int64)
    names = whole.group_names.filter(pa.array(full))
    group_starts = np.append(group_starts[:-1][full], group_starts[-1])
    return replace(
        whole,
        order=whole.order[kept],
        starts=starts,
        group_starts=group_starts,
        group_clients=clients,
        group_names=names,
    )
