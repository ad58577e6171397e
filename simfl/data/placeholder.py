"""Placeholder data sets of one example, with which plans count bytes and memory without the real data."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from simfl.data.base import DOCUMENTS, QUESTIONS, WORD_IMAGES, Dataset, Published, Split

NUM_WORDS = 2000  # on the page, more than any model reads
WORD = "simulator"  # most tokenizers divide it into several tokens
WHITE_PIXEL = (  # a PNG
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de000"
    "0000c49444154789c63f8ffff3f0005fe02fe0def46b80000000049454e44ae426082"
)


def placeholder_dataset(data: Dataset | Published) -> Dataset:
    """Build a data set of one example that has the largest shapes of `data`.

    Question answering data become one full page with a long question and answer; other loaded data are reduced to the
    example with the longest texts. Data known only by their published sizes become a page and a word in one.
    """
    if isinstance(data, Published):
        card: dict[str, object] = {"num_classes": data.num_classes, "shape": data.shape}
        card = {key: value for key, value in card.items() if value}
        return Dataset("placeholder", {"train": _full_page()}, "", card)
    train = data.splits["train"]
    examples = train.examples.slice(_longest(train.examples), 1)
    if train.documents is None:
        return Dataset("placeholder", {"train": Split(examples)}, "", data.card)
    page = _full_page()
    table = page.examples.select(QUESTIONS.names)
    for name in (name for name in examples.column_names if name not in QUESTIONS.names):
        table = table.append_column(examples.schema.field(name), examples[name])
    return Dataset("placeholder", {"train": Split(table, page.documents)}, "", data.card)


def _longest(examples: pa.Table) -> int:
    """Return the row with the most letters in its columns of texts; the first one of several."""
    letters = np.zeros(len(examples), np.int64)
    for column in examples.columns:
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            letters += pc.fill_null(pc.utf8_length(column), 0).to_numpy()
    return int(letters.argmax()) if len(letters) else 0


def _full_page() -> Split:
    text = " ".join([WORD] * 100)
    question = {"id": "0", "document": 0, "question": text, "answers": [text], "field": ""}
    example = {**question, "text": WORD, "image": bytes.fromhex(WHITE_PIXEL), "width": 1, "height": 1}
    boxes = [0.5] * 4 * NUM_WORDS
    page = {"id": "0", "provider": "", "words": [WORD] * NUM_WORDS, "boxes": boxes, "width": 1, "height": 1}
    types = {field.name: field.type for field in [*QUESTIONS, *WORD_IMAGES]}
    examples = {name: pa.array([example.get(name)], type) for name, type in types.items()}
    documents = {f.name: pa.array([page.get(f.name)], f.type) for f in DOCUMENTS}  # null image: a white page
    return Split(pa.table(examples), pa.table(documents))
