"""Arrow columns as NumPy arrays. Arrow's own `to_numpy` imports pandas where it is installed, which takes 0.2 s."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Column: TypeAlias = pa.ChunkedArray | pa.Array


def to_numpy(values: Column) -> np.ndarray:
    """Return a column of numbers or booleans without nulls as an array."""
    if isinstance(values, pa.ChunkedArray):
        parts = [to_numpy(chunk) for chunk in values.chunks]
        return parts[0] if len(parts) == 1 else np.concatenate(parts or [np.zeros(0)])
    if pa.types.is_boolean(values.type):
        return np.from_dlpack(values.cast(pa.int8())).astype(bool)
    array: np.ndarray = np.from_dlpack(values)
    return array


def null_mask(values: Column) -> np.ndarray:
    """Return which values of a column are null, bool [N]."""
    return to_numpy(pc.is_null(values))


def filled(values: Column, value: float) -> Column:
    """Return a column with `value` in place of null; Arrow is asked only if there are any, as it imports pandas too."""
    return pc.fill_null(values, value) if values.null_count else values


def list_lengths(lists: Column) -> np.ndarray:
    """Return the lengths of the lists of a column, int64 [N]; 0 for null."""
    return to_numpy(filled(pc.list_value_length(lists), 0)).astype(np.int64)
