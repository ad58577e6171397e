"""Splits joined from pieces, and cut into pieces."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np
import pyarrow as pa

from simfl.data.base import Split


def pages(split: Split) -> pa.Table:
    """The documents of a split that has some."""
    assert split.documents is not None
    return split.documents


def join(parts: Sequence[Split]) -> Split:
    """Splits one after the other as one. All have documents or none has."""
    if parts[0].documents is None:
        return Split(pa.concat_tables([p.examples for p in parts]).combine_chunks())
    first = accumulate((pages(p).num_rows for p in parts), initial=0)
    examples = [_shifted(p.examples, start) for p, start in zip(parts, first, strict=False)]
    documents = pa.concat_tables([pages(p) for p in parts])
    return Split(pa.concat_tables(examples).combine_chunks(), documents.combine_chunks())


def cut(whole: Split, counts: Sequence[int]) -> list[Split]:
    """The opposite: splits of so many documents each; of so many examples where there are no documents."""
    bounds = np.cumsum([0, *counts])
    if whole.documents is None:
        return [Split(whole.examples[a:b].combine_chunks()) for a, b in pairwise(bounds)]
    lines = np.searchsorted(whole.examples["document"].to_numpy(), bounds)
    return [
        Split(_shifted(whole.examples[a:b], -int(first)), pages(whole)[first:last])
        for a, b, first, last in zip(lines[:-1], lines[1:], bounds[:-1], bounds[1:], strict=True)
    ]


def _shifted(examples: pa.Table, by: int) -> pa.Table:
    """The examples with `by` added to the row of their document."""
    column = examples.schema.get_field_index("document")
    rows = pa.array(examples["document"].to_numpy() + by, pa.int32())
    return examples.set_column(column, examples.schema.field(column), rows)
