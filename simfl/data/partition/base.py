"""Base class of all partitioners, and their shared functions: column codes, whole documents, checks for leaks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from simfl.constraints import PositiveInt, ProperFraction
from simfl.data.base import Published, Split
from simfl.data.partition.manifest import Partition
from simfl.errors import ConfigError, DataError, nearest


@dataclass(frozen=True)
class Holdout:
    """Examples of each client that are kept from training, on which its model is scored."""

    fraction: ProperFraction | None = None  # share of each client's documents or examples, drawn at random
    stratify: str | None = "label"  # column whose values keep their proportions, if the data have it; null: none
    column: str | None = None  # or: the column that says which examples are held out
    values: tuple[str, ...] = ()  # values of `column` that are held out; empty: all except `train`

    def __post_init__(self) -> None:
        """Raise ConfigError unless exactly one rule is given."""
        if (self.fraction is None) == (self.column is None):
            raise ConfigError("fraction: give exactly one of fraction and column")
        if self.values and self.column is None:
            raise ConfigError("values: has no effect without column")


@dataclass(frozen=True)
class Partitioner(ABC):
    """A rule that assigns the examples of a split to clients."""

    clients: PositiveInt | None = None  # K; null: the data define the number
    holdout: ProperFraction | Holdout | None = field(
        default=None, kw_only=True
    )  # examples of each client on which its model is scored: a share, or a mapping; null: none
    max_examples: PositiveInt | None = field(
        default=None, kw_only=True
    )  # most training examples of a client; of more, so many are drawn; null: all
    group_columns: ClassVar[tuple[str, ...]] = ()  # fields that name a column whose values are the groups
    example: ClassVar[Mapping[str, object]] = {"clients": 5}  # settings for `simfl.contract.check`

    def plain(self) -> dict[str, object]:
        """Return the settings; `max_examples` only if given, so that manifests of older versions keep their hash."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: value for name, value in values.items() if name != "max_examples" or value is not None}

    @abstractmethod
    def split(self, split: Split, seed: int) -> Partition:
        """Return the partition of a split. It depends on the settings, the split and the seed only."""

    def expected(self, published: Published) -> np.ndarray | None:
        """Return the expected number of examples of each client, float64 [K], before the data are read.

        The default is equal shares. None if the number of clients is unknown.
        """
        return None if self.clients is None else np.full(self.clients, published.examples / self.clients)

    def owners(self, split: Split) -> np.ndarray | None:
        """Return the client of each example of a split that is only evaluated, int64 [N]; −1: none.

        The default, None, leaves it to the named groups of the clients.
        """
        return None

    def num_clients(self, at_most: int, reason: str) -> int:
        """Return the requested number of clients. Raise ConfigError if it is missing, below 1 or above `at_most`."""
        if self.clients is None:
            raise ConfigError("partition.clients: missing; this partition needs the number of clients")
        if self.clients < 1 or self.clients > at_most:
            raise ConfigError(
                f"partition.clients: {self.clients} requested, the split allows 1 to {at_most} ({reason})"
            )
        return self.clients

    def check_num_clients(self, found: int) -> int:
        """Return the number of clients in the data. Raise ConfigError if the settings give another number."""
        if self.clients is not None and self.clients != found:
            raise ConfigError(f"partition.clients: {self.clients} requested, the data has {found} clients")
        return found


def columns_of(partitioner: Partitioner) -> tuple[str, ...]:
    """Return the columns whose values are the groups of a partition, outermost first; empty if it makes no groups."""
    values = [getattr(partitioner, f.name) for f in fields(partitioner)]
    own = [getattr(partitioner, name) for name in partitioner.group_columns]
    inner = [name for value in values if isinstance(value, Partitioner) for name in columns_of(value)]
    return tuple(name for name in [*own, *inner] if name is not None)


def column(split: Split, name: str) -> tuple[np.ndarray, pa.Array]:
    """Return a column of the examples, or of their documents, as codes int64 [N] into its sorted distinct values.

    Raises:
        ConfigError: There is no such column.
        DataError: The column has empty values, or lists.
    """
    table, rows = _find(split, name)
    values = _single(table[name])
    if values.null_count:
        raise DataError(f"partition: column {name!r} has {values.null_count} empty values")
    try:
        encoded = values.dictionary_encode()
        names = encoded.dictionary.cast(pa.string())
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        raise DataError(f"partition: column {name!r} has type {values.type}, one value per row is needed") from None
    if not len(names):
        return np.zeros(0, np.int64), names
    by = pc.array_sort_indices(encoded.dictionary)
    rank = np.empty(len(by), np.int64)
    rank[np.from_dlpack(by)] = np.arange(len(by))  # `to_numpy` of Arrow imports pandas first, which takes 0.2 s
    codes = rank[np.from_dlpack(encoded.indices)]
    codes = codes if rows is None else codes[rows]
    present, names = np.bincount(codes, minlength=len(by)) > 0, names.take(by)
    if present.all():
        return codes, names
    return (np.cumsum(present) - 1)[codes], names.filter(pa.array(present))


def _find(split: Split, name: str) -> tuple[pa.Table, np.ndarray | None]:
    if name in split.examples.column_names:
        return split.examples, None
    if split.documents is not None and name in split.documents.column_names:
        return split.documents, documents(split)
    known = split.examples.column_names + (split.documents.column_names if split.documents is not None else [])
    raise ConfigError(f"partition: the data has no column {name!r}; {nearest(name, known)}")


def _single(values: pa.ChunkedArray) -> pa.Array:
    plain = values.cast(values.type.value_type) if pa.types.is_dictionary(values.type) else values
    chunks = plain.combine_chunks()
    return pa.concat_arrays(chunks.chunks) if isinstance(chunks, pa.ChunkedArray) else chunks


def documents(split: Split) -> np.ndarray:
    """Return the document of each example, int64 [N]."""
    rows: np.ndarray = split.examples["document"].to_numpy().astype(np.int64)
    return rows


def units(split: Split, split_documents: bool) -> tuple[np.ndarray, int]:
    """Return the unit of each example as codes int64 [N], and the number of units.

    A unit is never divided between clients: a document if the split has documents, else a single example.
    """
    if split.documents is None or split_documents:
        return np.arange(split.examples.num_rows), split.examples.num_rows
    used, codes = np.unique(documents(split), return_inverse=True)
    return codes.astype(np.int64), len(used)


def value_of_unit(unit: np.ndarray, count: int, codes: np.ndarray, name: str) -> np.ndarray:
    """Return the column value of each unit, int64 [U]. Raise ConfigError if a document has several values."""
    value = np.empty(count, np.int64)
    value[unit] = codes
    if np.any(value[unit] != codes):
        raise ConfigError(f"partition: column {name!r} differs within a document; set split_documents: true")
    return value


def check_one_owner(owner: np.ndarray, codes: np.ndarray, names: pa.Array | None, kind: str) -> None:
    """Raise DataError if a group (provider, document) has rows of two clients; rows without a client are -1."""
    kept = owner >= 0
    owner, codes = owner[kept], codes[kept]
    one = np.full(int(codes.max(initial=-1)) + 1, -1, np.int64)
    one[codes] = owner
    leaks = np.flatnonzero(one[codes] != owner)
    if len(leaks):
        row = leaks[0]
        name = names[int(codes[row])].as_py() if names is not None else int(codes[row])
        raise DataError(f"partition: {kind} {name!r} is in client {owner[row]} and client {one[codes[row]]}")


def check_document_owners(split: Split, owner: np.ndarray) -> None:
    """Raise DataError if the examples of a document belong to several clients."""
    if split.documents is not None:
        check_one_owner(owner, documents(split), split.documents["id"].combine_chunks(), kind="document")


def selected_values(column: str, names: pa.Array, chosen: Sequence[str]) -> list[str]:
    """Return the chosen values of a column, or all if none is chosen. Raise ConfigError if a value does not occur."""
    known = names.to_pylist()
    for value in chosen:
        if value not in known:
            raise ConfigError(f"partition.values: column {column!r} has no {value!r}; {nearest(value, known)}")
    return list(chosen) or known
