"""Table rows as columns: a round of 10,000 clients has 30,000 rows, which are too many Python objects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, overload

import numpy as np

Scalar: TypeAlias = int | float | str
Row: TypeAlias = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Columns(Sequence[Row]):
    """A sequence of n rows with the same keys, stored by column.

    Attributes:
        length: n.
        values: Column -> one value that all rows have, or an array [n] of integers, floats or texts. A float that is
            NaN is a missing value.
    """

    length: int = 0
    values: Mapping[str, Scalar | np.ndarray] = field(default_factory=dict)

    @staticmethod
    def of(rows: Iterable[Mapping[str, Any]]) -> Columns:
        """Return rows with the same keys, whose values are integers, texts, floats or None in place of a float."""
        if isinstance(rows, Columns):
            return rows
        found = list(rows)
        return Columns(
            len(found), {name: _column([row[name] for row in found]) for name in (found[0] if found else ())}
        )

    @staticmethod
    def concat(blocks: Iterable[Columns]) -> Columns:
        """Join blocks; those with rows have the same columns."""
        found = [block for block in blocks if len(block)]
        if len(found) < 2:
            return found[0] if found else Columns()
        return Columns(sum(map(len, found)), {name: _joined(name, found) for name in found[0].values})

    def column(self, name: str) -> np.ndarray:
        """Return a column as an array [n]."""
        value = self.values[name]
        if isinstance(value, np.ndarray):
            return value
        return np.full(self.length, value, object if isinstance(value, str) else None)

    def items_of(self, name: str) -> list[Any]:
        """Return a column as a list; missing values are None."""
        value = self.values[name]
        if not isinstance(value, np.ndarray):
            return [_shown(value)] * self.length
        return list(map(_shown, value.tolist())) if value.dtype.kind == "f" else value.tolist()

    def total(self, name: str) -> int:
        """Return the sum of a column of integers; 0 of a column that there is not."""
        value = self.values.get(name, 0)
        return int(value.sum()) if isinstance(value, np.ndarray) else int(value) * self.length

    def take(self, rows: np.ndarray) -> Columns:
        """Return the rows at these positions, int64, in this order."""
        found = {name: v[rows] if isinstance(v, np.ndarray) else v for name, v in self.values.items()}
        return Columns(len(rows), found if len(rows) else {})

    def with_column(self, name: str, value: Scalar | np.ndarray) -> Columns:
        """Return the rows with another column in the place of one."""
        return Columns(self.length, {**self.values, name: value} if self.length else {})

    def where(self, name: str, wanted: Scalar) -> Columns:
        """Return the rows with this value in a column."""
        value = self.values.get(name)
        if not isinstance(value, np.ndarray):
            return self if self.length and value == wanted else Columns()
        return self.take(np.flatnonzero(value == wanted)).with_column(name, wanted)

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[Row]:
        names = list(self.values)
        for values in zip(*map(self.items_of, names), strict=True):
            yield dict(zip(names, values, strict=True))

    @overload
    def __getitem__(self, index: int) -> Row: ...

    @overload
    def __getitem__(self, index: slice) -> Columns: ...

    def __getitem__(self, index: int | slice) -> Row | Columns:
        if isinstance(index, slice):
            return self.take(np.arange(self.length)[index])
        row = range(self.length)[index]
        return next(iter(self[row : row + 1]))


def _column(values: Sequence[Any]) -> Scalar | np.ndarray:
    """Return the values as an array, or as one value if they are equal."""
    first = values[0]
    if first is not None and all(value == first for value in values):
        return first
    if isinstance(first, str):
        return np.array(values, object)
    return np.array([np.nan if value is None else value for value in values])


def _joined(name: str, blocks: Sequence[Columns]) -> Scalar | np.ndarray:
    first = blocks[0].values[name]
    if not isinstance(first, np.ndarray) and all(_is_same(block.values[name], first) for block in blocks):
        return first
    return np.concatenate([block.column(name) for block in blocks])


def _is_same(value: Scalar | np.ndarray, first: Scalar) -> bool:
    return not isinstance(value, np.ndarray) and type(value) is type(first) and value == first


def _shown(value: Any) -> Any:
    """Return a value of a row: None in place of NaN."""
    return None if isinstance(value, float) and value != value else value
