"""Partitions written by hand: the rows of each client, from Python or in a file.

partition=[[0, 1, 2], [3, 4]]                     the rows of client 0, of client 1, …
partition={"clinic a": [0, 1, 2], "clinic b": …}  clients with names, which are kept as their metadata
partition: {by: rows, rows: ["0-2", "3,4"]}       in a file; a text lists rows and ranges
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from simfl.data.base import Published, Split
from simfl.data.partition.base import Partitioner, check_document_owners
from simfl.data.partition.manifest import Partition, row_ranges
from simfl.errors import ConfigError, DataError

RANGES = re.compile(r"\s*\d+(-\d+)?\s*(,\s*\d+(-\d+)?\s*)*")
SHOWN = 40  # characters of a value in a message


@dataclass(frozen=True)
class ByHand(Partitioner):
    """The rows of each client, as a list or by the client's name; rows that no client has are not used."""

    rows: (
        tuple[object, ...] | Mapping[str, object]
    ) = ()  # lists of rows, or texts such as "0-5,7"; or a mapping from names of clients to them
    shared_documents: bool = False  # true: questions about one document may belong to several clients
    empty_clients: bool = False  # true: a client may have no row
    example: ClassVar[Mapping[str, object]] = {"rows": ["0-59", "60-99", "100-119"], "shared_documents": True}

    def split(self, split: Split, seed: int) -> Partition:
        """Assign the rows. Raise ConfigError for a row that does not exist or has two clients."""
        rows = self._rows_of_clients()
        if not rows:
            raise ConfigError("partition.rows: missing; give a list of rows for each client")
        names = list(map(str, self.rows)) if isinstance(self.rows, Mapping) else []
        partition = assigned(self, rows, names, split, lambda client, _: self._where(client))
        self.check_num_clients(len(partition))
        return partition

    def expected(self, published: Published) -> np.ndarray | None:
        """Return the number of rows of each client."""
        return np.array([len(own) for own in self._rows_of_clients()], np.float64)

    def plain(self) -> dict[str, object]:
        """Return the settings as an experiment file contains them."""
        texts = [row_ranges(own) for own in self._rows_of_clients()]
        named = dict(zip(map(str, self.rows), texts, strict=True)) if isinstance(self.rows, Mapping) else texts
        plain = {**super().plain(), "rows": named}
        return plain if self.empty_clients else {k: v for k, v in plain.items() if k != "empty_clients"}

    def __repr__(self) -> str:
        """Return the settings in short, however they were given."""
        return f"ByHand({self.plain()!r})"

    def _rows_of_clients(self) -> list[np.ndarray]:
        given = list(self.rows.values()) if isinstance(self.rows, Mapping) else self.rows
        return [read_rows(own, self._where(client)) for client, own in enumerate(given)]

    def _where(self, client: int) -> str:
        named = f" ({list(self.rows)[client]!r})" if isinstance(self.rows, Mapping) else ""
        return f"partition.rows: client {client}{named}"


class Listed(Protocol):
    """Settings of partitions that list the rows of each client."""

    @property
    def shared_documents(self) -> bool:
        """Return whether questions about one document may belong to several clients."""

    @property
    def empty_clients(self) -> bool:
        """Return whether a client may have no row."""


def assigned(
    settings: Listed, rows: Sequence[np.ndarray], names: Sequence[str], split: Split, where: Callable[[int, str], str]
) -> Partition:
    """Return the partition that gives each client its rows.

    Args:
        settings: What the partition allows.
        rows: Rows of each client, int64 [n].
        names: Names of the clients, kept as their metadata; empty: they have none.
        split: The split.
        where: Returns the words for a client, by its number and name, with which a message starts.

    Raises:
        ConfigError: A row does not exist, is listed twice or has two clients, or a client has no row.
        DataError: A document has two clients.
    """
    owner = np.full(len(split), -1, np.int64)
    for client, own in enumerate(rows):
        at = where(client, names[client] if names else "")
        wrong = own[(own < 0) | (own >= len(owner))]
        if len(wrong):
            raise ConfigError(f"{at}: row {wrong[0]}, but the split has rows 0 to {len(owner) - 1}")
        values, counts = np.unique(own, return_counts=True)
        if (counts > 1).any():
            raise ConfigError(f"{at}: row {values[counts > 1][0]} is listed twice")
        taken = own[owner[own] >= 0]
        if len(taken):
            raise ConfigError(f"{at}: row {taken[0]} is also in client {_shown_client(owner[taken[0]], names)}")
        if not len(own) and not settings.empty_clients:
            raise ConfigError(f"{at}: it has no row; leave it out, or allow it with empty_clients: true")
        owner[own] = client
    if not settings.shared_documents:
        try:
            check_document_owners(split, owner)
        except DataError as error:
            raise DataError(f"{error}; allowed with shared_documents: true") from None
    return Partition.from_owners(owner, len(rows), metas=[{"name": name} for name in names])


def _shown_client(client: int, names: Sequence[str]) -> str:
    return f"{client} ({names[client]!r})" if names else str(client)


def read_rows(given: Any, where: str) -> np.ndarray:
    """Return the rows of a client, int64 [n]. Raise ConfigError if they are not whole numbers."""
    if isinstance(given, str):
        if not given.strip():
            return np.zeros(0, np.int64)
        if not RANGES.fullmatch(given):
            raise ConfigError(f"{where}: {_shown(given)} given, expected rows and ranges such as '0-5,7'")
        pairs = [part.split("-") for part in given.split(",")]
        return np.concatenate([np.arange(int(pair[0]), int(pair[-1]) + 1) for pair in pairs]).astype(np.int64)
    values = given.tolist() if hasattr(given, "tolist") else given
    values = list(values) if hasattr(values, "__len__") else None
    if values is None or not all(isinstance(row, (int, np.integer)) and not isinstance(row, bool) for row in values):
        raise ConfigError(f"{where}: {_shown(given)} given, expected a list of rows, which are whole numbers")
    try:
        return np.array(values, np.int64).reshape(len(values))
    except OverflowError:
        raise ConfigError(f"{where}: {_shown(max(values, key=abs))} is no row") from None


def wrap(value: Any) -> Partitioner | None:
    """Return rows that are given in place of a partitioner's settings as a component; None for any other value."""
    if isinstance(value, Mapping):
        if set(value) == {"clients"}:
            return wrap(value["clients"])
        return ByHand(rows=dict(value)) if value and all(map(_is_rows, value.values())) else None
    is_list = isinstance(value, Sequence) and not isinstance(value, (str, bytes))
    return ByHand(rows=tuple(value)) if is_list and len(value) and all(map(_is_rows, value)) else None


def _is_rows(value: object) -> bool:
    return not isinstance(value, (str, bytes, Mapping)) and hasattr(value, "__len__") and hasattr(value, "__getitem__")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"
