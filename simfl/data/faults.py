"""Faults of data: rows that would become wrong numbers, named by split, row and column."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

SHOWN = 40  # characters of a value in a message


@dataclass(frozen=True)
class Fault:
    """One kind of fault in a split."""

    split: str
    kind: str  # in the plural, for a list of findings
    count: int
    place: str  # the first row and column that have it, beginning with a comma; empty: the split itself
    problem: str  # what is there, and what is expected

    def __str__(self) -> str:
        more = f"; {self.count:,} in all" if self.count > 1 else ""
        return f"data, split {self.split}{self.place}: {self.problem}{more}"


@dataclass(frozen=True)
class SplitTable:
    """A table of a split, with the words that name its rows in messages."""

    split: str
    name: str  # examples or documents; empty where a split has one table
    data: pa.Table

    def fault(self, kind: str, count: int, row: int, column: str, problem: str) -> Fault:
        """Return a fault whose first row is `row`."""
        return Fault(self.split, kind, count, self.place(column, row), problem)

    def column_fault(self, kind: str, column: str, problem: str) -> Fault:
        """Return a fault of a whole column."""
        return Fault(self.split, kind, 1, self.place(column), problem)

    def place(self, column: str, row: int | None = None) -> str:
        """Name a row and a column."""
        parts = [self.name] if self.name else []
        if row is not None:
            id = self.data["id"][row].as_py() if self.has("id") else None
            parts.append(f"row {row}" + (f" ({shown(id)})" if id is not None else ""))
        return f", {' '.join(parts)}{', ' if parts else ''}column {column!r}"

    def has(self, *columns: str) -> bool:
        """Return whether the table has all of these columns."""
        return set(columns) <= set(self.data.column_names)


def shown(value: object) -> str:
    """Return a value for a message, cut to a few words."""
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"
