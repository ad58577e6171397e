"""Arrow tables of splits: building row by row, concatenation and division."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from itertools import accumulate, pairwise

import numpy as np
import pyarrow as pa

from simfl.data.base import Split
from simfl.data.faults import shown
from simfl.errors import DataError

VALUE_ERRORS = (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, UnicodeError)
CHUNK = 4096  # rows held as Python objects before they are converted to Arrow


class TableBuilder:
    """A table built row by row. Rows become Arrow every few thousand, so large tables never exist as Python objects."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self._batches: list[pa.RecordBatch] = []
        self._num_rows = 0
        self._open: dict[str, list[object]] = {name: [] for name in schema.names}

    def __len__(self) -> int:
        return self._num_rows

    def add(self, **values: object) -> None:
        """Add one row. A column that is not given is null; a value may be a `Future`."""
        for name, column in self._open.items():
            column.append(values.pop(name, None))
        assert not values, f"no columns {sorted(values)}"
        self._num_rows += 1
        if self._num_rows % CHUNK == 0:
            self._flush()

    def table(self) -> pa.Table:
        """Return all rows, with one chunk a column."""
        self._flush()
        return pa.Table.from_batches(self._batches, self.schema).combine_chunks()

    def _flush(self) -> None:
        values = {name: [_result(value) for value in column] for name, column in self._open.items()}
        first = self._num_rows - len(next(iter(values.values()), []))
        arrays = [_array(values[field.name], field, first) for field in self.schema]
        self._batches.append(pa.record_batch(arrays, schema=self.schema))
        self._open = {name: [] for name in self.schema.names}


def _array(values: Sequence[object], field: pa.Field, first: int) -> pa.Array:
    """Return a column; DataError for the first value that its type cannot hold. `first` is the row of values[0]."""
    try:
        return pa.array(values, field.type)
    except VALUE_ERRORS as error:
        for row, value in enumerate(values, start=first):
            try:
                pa.array([value], field.type)
            except VALUE_ERRORS:
                reason = "not UTF-8" if isinstance(error, UnicodeError) else f"not {field.type}"
                raise DataError(f"row {row}, column {field.name!r}: {shown(value)} is {reason}") from None
        raise


def _result(value: object) -> object:
    return value.result() if isinstance(value, Future) else value


def documents_of(split: Split) -> pa.Table:
    """Return the documents of a split that has documents."""
    assert split.documents is not None
    return split.documents


def concatenate(splits: Sequence[Split]) -> Split:
    """Concatenate splits, of which all or none have documents."""
    if splits[0].documents is None:
        return Split(pa.concat_tables([split.examples for split in splits]).combine_chunks())
    starts = accumulate((documents_of(split).num_rows for split in splits), initial=0)
    examples = [shift_documents(split.examples, start) for split, start in zip(splits, starts, strict=False)]
    documents = pa.concat_tables([documents_of(split) for split in splits])
    return Split(pa.concat_tables(examples).combine_chunks(), documents.combine_chunks())


def divide(split: Split, counts: Sequence[int]) -> list[Split]:
    """Divide a split into consecutive parts of so many documents each, or of so many examples without documents."""
    bounds = np.cumsum([0, *counts])
    if split.documents is None:
        return [Split(split.examples[a:b].combine_chunks()) for a, b in pairwise(bounds)]
    rows = np.searchsorted(split.examples["document"].to_numpy(), bounds)
    return [
        Split(shift_documents(split.examples[a:b], -int(first)), documents_of(split)[first:last])
        for a, b, first, last in zip(rows[:-1], rows[1:], bounds[:-1], bounds[1:], strict=True)
    ]


def shift_documents(examples: pa.Table, offset: int) -> pa.Table:
    """Return the examples with `offset` added to the column `document`."""
    column = examples.schema.get_field_index("document")
    rows = pa.array(examples["document"].to_numpy() + offset, pa.int32())
    return examples.set_column(column, examples.schema.field(column), rows)
