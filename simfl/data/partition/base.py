"""The base of all partitioners, and what they share: columns as codes, documents kept whole, checks for leaks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from simfl.constraints import Count
from simfl.data.base import Published, Split
from simfl.data.partition.manifest import Partition
from simfl.errors import ConfigError, DataError, nearest


@dataclass(frozen=True)
class Partitioner(ABC):
    """A rule by which clients come to own the examples of a split."""

    clients: Count | None = None  # K; null where the data says how many
    group_columns: ClassVar[tuple[str, ...]] = ()  # its fields that name the column whose values are its groups

    @abstractmethod
    def split(self, split: Split, seed: int) -> Partition:
        """The partition of this split, the same for the same settings, split and seed."""

    def expected(self, published: Published) -> np.ndarray | None:
        """Examples of each client, float64 [K], from what is known before the data are read; by default equal shares.

        None where not even the number of clients is known.
        """
        return None if self.clients is None else np.full(self.clients, published.examples / self.clients)

    def count(self, at_most: int, what: str) -> int:
        """The number of clients asked for, refused if there are fewer of `what` than clients."""
        if self.clients is None:
            raise ConfigError("partition.clients: not given, and this partition does not follow from the data")
        if self.clients < 1 or self.clients > at_most:
            raise ConfigError(f"partition.clients: {self.clients} asked, the split allows 1 to {at_most} ({what})")
        return self.clients

    def count_is(self, found: int) -> int:
        """The number of clients in the data, refused if the experiment says another."""
        if self.clients is not None and self.clients != found:
            raise ConfigError(f"partition.clients: {self.clients} asked, the data has {found} clients")
        return found


def columns_of(partitioner: Partitioner) -> tuple[str, ...]:
    """The columns whose values are the groups of a partition, outermost first; none where it makes no groups."""
    values = [getattr(partitioner, f.name) for f in fields(partitioner)]
    own = [getattr(partitioner, name) for name in partitioner.group_columns]
    inner = [name for value in values if isinstance(value, Partitioner) for name in columns_of(value)]
    return tuple(name for name in [*own, *inner] if name is not None)


def column(split: Split, name: str) -> tuple[np.ndarray, pa.Array]:
    """A column of the examples, else of their documents, as codes int64 [N] into its sorted distinct names."""
    table, rows = _find(split, name)
    values = _single(table[name])
    if values.null_count:
        raise DataError(f"partition: column {name!r} has {values.null_count} empty values")
    try:
        encoded = values.dictionary_encode()
        names = encoded.dictionary.cast(pa.string())
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        raise DataError(f"partition: column {name!r} holds {values.type}, one value a row is needed") from None
    if not len(names):
        return np.zeros(0, np.int64), names
    by = pc.array_sort_indices(encoded.dictionary)
    rank = np.empty(len(by), np.int64)
    rank[np.from_dlpack(by)] = np.arange(len(by))  # Arrow's own `to_numpy` imports pandas first, a fifth of a second
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
    """The document of each example, int64 [N]."""
    rows: np.ndarray = split.examples["document"].to_numpy().astype(np.int64)
    return rows


def units(split: Split, split_documents: bool) -> tuple[np.ndarray, int]:
    """What is never divided: documents where there are any, else single examples. Codes int64 [N] and their number."""
    if split.documents is None or split_documents:
        return np.arange(split.examples.num_rows), split.examples.num_rows
    used, codes = np.unique(documents(split), return_inverse=True)
    return codes.astype(np.int64), len(used)


def value_of_unit(unit: np.ndarray, count: int, codes: np.ndarray, name: str) -> np.ndarray:
    """The one column value of each unit, int64 [U]; refused where a document has several."""
    value = np.empty(count, np.int64)
    value[unit] = codes
    if np.any(value[unit] != codes):
        raise ConfigError(f"partition: column {name!r} differs within a document; set split_documents: true")
    return value


def refuse_shared(owner: np.ndarray, codes: np.ndarray, names: pa.Array | None, what: str) -> None:
    """Raises if a group (provider, document) has rows of two clients; rows of nobody (-1) do not count."""
    kept = owner >= 0
    owner, codes = owner[kept], codes[kept]
    one = np.full(int(codes.max(initial=-1)) + 1, -1, np.int64)
    one[codes] = owner
    leaks = np.flatnonzero(one[codes] != owner)
    if len(leaks):
        row = leaks[0]
        name = names[int(codes[row])].as_py() if names is not None else int(codes[row])
        raise DataError(f"partition: {what} {name!r} is in client {owner[row]} and client {one[codes[row]]}")


def refuse_shared_documents(split: Split, owner: np.ndarray) -> None:
    """Raises if the examples of a document have several owners; nothing to do where there are no documents."""
    if split.documents is not None:
        refuse_shared(owner, documents(split), split.documents["id"].combine_chunks(), what="document")


def values_of(column: str, names: pa.Array, chosen: Sequence[str]) -> list[str]:
    """The values of a column that were chosen, all of them if none was. ConfigError if the column has no such value."""
    known = names.to_pylist()
    for value in chosen:
        if value not in known:
            raise ConfigError(f"partition.values: column {column!r} has no {value!r}; {nearest(value, known)}")
    return list(chosen) or known
