"""Partitions that a file lists: the rows, the ids, or the values of a column that each client has.

clients.json      {"clinic a": [0, 1, 2], "clinic b": "3-9"}      rows; or lists of ids, or a list of such lists
clients.parquet   columns `client` and `row`, or `client` and `id`; one row for each example; also .csv and .tsv
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from simfl.data.base import Published, Split
from simfl.data.io import records
from simfl.data.io.table_files import CsvFormat, read_columns
from simfl.data.partition.base import Partitioner, column
from simfl.data.partition.by_hand import assigned, read_rows
from simfl.data.partition.manifest import Partition
from simfl.errors import ConfigError, DataError, nearest

ID = "id"
TABLES = (".parquet", ".csv", ".tsv")
SEARCHED = 2000  # values among which the nearest one to an unknown value is looked for


@dataclass(frozen=True)
class FromFile(Partitioner):
    """The rows or ids of each client, listed in a JSON, Parquet or CSV file; others are not used."""

    path: str = ""  # {client: rows or ids} in JSON, or a table with the columns client and row or id
    column: str | None = None  # column whose values the file lists; null: row numbers, or the column id for texts
    shared_documents: bool = False  # true: questions about one document may belong to several clients
    empty_clients: bool = False  # true: a client may have no example
    example: ClassVar[Mapping[str, object]] = {"path": "clients.json"}

    def split(self, split: Split, seed: int) -> Partition:
        """Read the file.

        Raises:
            ConfigError: A row does not exist, an id is unknown, or a client has nothing.
            DataError: The file cannot be read, or an example has two clients.
        """
        rows = {name: self._rows(name, given, split) for name, given in self._clients.items()}
        partition = assigned(self, list(rows.values()), list(rows), split, self._where)
        self.check_num_clients(len(partition))
        return partition

    def expected(self, published: Published) -> np.ndarray | None:
        """Return the number of rows or ids of each client; None where the file lists values of a column."""
        if self.column not in (None, ID):
            return None
        return np.array([len(self._values(name, given)) for name, given in self._clients.items()], np.float64)

    @cached_property
    def _clients(self) -> dict[str, Any]:
        """Return what the file lists for each client, by the client's name."""
        if not self.path:
            raise ConfigError("partition.path: missing; give the file that lists the examples of each client")
        path = records.resolve_file(self.path, "partition.path")
        given = _from_table(path) if path.suffix.lower() in TABLES else records.read_json(path)
        if isinstance(given, dict) and list(given) == ["clients"]:
            given = given["clients"]
        if isinstance(given, list):
            given = {str(number): own for number, own in enumerate(given)}
        if not isinstance(given, dict) or not given:
            raise DataError(
                f'{path}: expected the rows or ids of each client, such as {{"clinic a": [0, 1, 2]}}, or a table with'
                " the columns client and row or id"
            )
        return given

    def __getstate__(self) -> dict[str, object]:
        """Return the settings for another process, without what was read."""
        return {one.name: getattr(self, one.name) for one in fields(self)}

    def _where(self, client: int, name: str) -> str:
        return f"{self.path}: client {name!r}"

    def _values(self, name: str, given: Any) -> Any:
        """Return what a client lists: rows, int64 [n], or texts."""
        texts = isinstance(given, list) and any(isinstance(value, str) for value in given)
        if self.column is None and not texts:
            return read_rows(given, f"{self.path}: client {name!r}")
        if not isinstance(given, list) or not all(isinstance(v, (str, int)) and not isinstance(v, bool) for v in given):
            raise DataError(f"{self.path}: client {name!r} has {given!r:.60}, expected a list of {self.column or ID}s")
        return [str(value) for value in given]

    def _rows(self, name: str, given: Any, split: Split) -> np.ndarray:
        values = self._values(name, given)
        if isinstance(values, np.ndarray):
            return values
        wanted, (codes, known, number) = self.column or ID, self._index(split)
        unknown = next((value for value in values if value not in number), None)
        if unknown is not None:
            hint = nearest(unknown, known[:SEARCHED])
            raise ConfigError(f"{self.path}: client {name!r}: the data have no {wanted} {unknown!r}; {hint}")
        if twice := [value for value, count in zip(*np.unique(values, return_counts=True), strict=True) if count > 1]:
            raise ConfigError(f"{self.path}: client {name!r} lists {wanted} {str(twice[0])!r} twice")
        chosen = np.zeros(len(known), bool)
        chosen[[number[value] for value in values]] = True
        return np.flatnonzero(chosen[codes]) if len(values) else np.zeros(0, np.int64)

    def _index(self, split: Split) -> tuple[np.ndarray, list[str], dict[str, int]]:
        """Return the codes of the column of each row, its values, and the code of each value."""
        kept: dict[int, tuple[np.ndarray, list[str], dict[str, int]]] = vars(self).setdefault("_indices", {})
        if id(split) not in kept:
            wanted = self.column or ID
            if self.column is None and ID not in split.examples.column_names:
                raise ConfigError(
                    f"{self.path}: it lists texts, but the data have no column {ID!r}; list row numbers, or give"
                    f" partition.column: one of {', '.join(split.examples.column_names)}"
                )
            codes, names = column(split, wanted)
            known = names.to_pylist()
            if self.column is None and len(known) < len(codes):
                twice = known[int(np.argmax(np.bincount(codes)))]
                raise DataError(f"{self.path}: the id {twice!r} occurs twice in the data; list row numbers")
            kept.clear()
            kept[id(split)] = codes, known, {value: code for code, value in enumerate(known)}
        return kept[id(split)]


def _from_table(path: Path) -> dict[str, list[Any]]:
    """Return the rows or ids of each client from a table with one row for each example."""
    table = read_columns([path], CsvFormat(texts=(ID, "client")))
    listed = next((name for name in ("row", ID) if name in table), None)
    if "client" not in table or listed is None:
        raise DataError(f"{path}: its columns are {', '.join(table)}; expected client and row, or client and id")
    found: dict[str, list[Any]] = {}
    for client, value in zip(table["client"], table[listed], strict=True):
        found.setdefault(str(client), []).append(value)
    return found
