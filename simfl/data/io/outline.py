"""A data set with one example in place of all: what a pass needs to be counted, without the data."""

from __future__ import annotations

import pyarrow as pa

from simfl.data.base import DOCUMENTS, QUESTIONS, WORD_PICTURES, Dataset, Published, Split

WORDS = 2000  # on a page, more than any model reads
WORD = "simulator"  # of several pieces, as most are not


def outline(data: Dataset | Published) -> Dataset:
    """One full page with a long question and answer, or one word; of other data that were read, their first example."""
    if isinstance(data, Published):
        card: dict[str, object] = {"num_classes": data.num_classes, "shape": data.shape}
        return Dataset("outline", {"train": _full()}, "", {key: value for key, value in card.items() if value})
    train = data.splits["train"]
    examples = train.examples.slice(0, 1)
    if train.documents is not None:
        full, more = _full(), [name for name in examples.column_names if name not in QUESTIONS.names]
        table = full.examples.select(QUESTIONS.names)
        for name in more:
            table = table.append_column(examples.schema.field(name), examples[name])
        return Dataset("outline", {"train": Split(table, full.documents)}, "", data.card)
    return Dataset("outline", {"train": Split(examples)}, "", data.card)


def _full() -> Split:
    text = " ".join([WORD] * 100)
    known = {
        "id": "0",
        "document": 0,
        "question": text,
        "answers": [text],
        "field": "",
        "text": WORD,
        "width": 1,
        "height": 1,
    }
    page = {"id": "0", "provider": "", "words": [WORD] * WORDS, "boxes": [0.5] * 4 * WORDS, "width": 1, "height": 1}
    kinds = {f.name: f.type for f in [*QUESTIONS, *WORD_PICTURES]}
    examples = {name: pa.array([known.get(name)], kind) for name, kind in kinds.items()}
    documents = {f.name: pa.array([page.get(f.name)], f.type) for f in DOCUMENTS}  # no image: a white one
    return Split(pa.table(examples), pa.table(documents))
