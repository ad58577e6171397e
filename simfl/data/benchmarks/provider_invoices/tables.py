"""Documents as Arrow tables."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from simfl.data.base import DOCUMENTS, QUESTIONS, Split
from simfl.data.benchmarks.provider_invoices.documents import GRID, Document

EXAMPLES = QUESTIONS.append(pa.field("client", pa.int32()))  # the client whose scanner read the page


def to_split(documents: Sequence[Document]) -> Split:
    """The documents and their questions, one row each."""
    asked = [(row, i, d, q) for row, d in enumerate(documents) for i, q in enumerate(d.questions)]
    examples = {
        "id": [f"{d.id}-{i}" for _, i, d, _ in asked],
        "document": [row for row, _, _, _ in asked],
        "question": [q.question for _, _, _, q in asked],
        "answers": [list(q.answers) for _, _, _, q in asked],
        "field": [q.field for _, _, _, q in asked],
        "client": [d.group for _, _, d, _ in asked],
    }
    columns = {
        "id": [d.id for d in documents],
        "provider": [d.provider for d in documents],
        "words": [d.words for d in documents],
        "boxes": _boxes(documents),
        "image": [d.image for d in documents],
        "width": [d.width for d in documents],
        "height": [d.height for d in documents],
    }
    return Split(pa.table(examples, schema=EXAMPLES), pa.table(columns, schema=DOCUMENTS))


def _boxes(documents: Sequence[Document]) -> pa.Array:
    ends = np.cumsum([0] + [len(d.boxes) for d in documents]).astype(np.int32)
    flat = np.fromiter((v for d in documents for v in d.boxes), np.float32, ends[-1]) / np.float32(GRID)
    return pa.ListArray.from_arrays(pa.array(ends), pa.array(flat))
