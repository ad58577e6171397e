"""Word recognition splits: images of single words with their text.

Scene text data sets contain images that cannot be decoded and labels that no model could output. These are left out
and counted, never replaced by another example.
"""

from __future__ import annotations

import string
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import pyarrow as pa

from simfl.data.base import WORD_IMAGES, Dataset, Split
from simfl.data.io.arrow_store import content_sha256
from simfl.data.io.tables import TableBuilder
from simfl.errors import DataError
from simfl.images import measure_image

Alphabet = Literal["any", "printable", "alphanumeric"]
ALPHABETS: dict[Alphabet, frozenset[str]] = {
    "any": frozenset(),
    "printable": frozenset(string.digits + string.ascii_letters + string.punctuation),  # the 94 characters of ASTER
    "alphanumeric": frozenset(string.digits + string.ascii_letters),
}


@dataclass
class WordSplitBuilder:
    """Builder of one split of word images."""

    alphabet: Alphabet  # words with other characters are left out
    lexicons: bool = False  # true: each word has a list of candidates
    dropped: Counter[str] = field(default_factory=Counter)  # words left out, by reason

    def __post_init__(self) -> None:
        more = [("lexicon", pa.list_(pa.string()))] if self.lexicons else []
        self._table = TableBuilder(pa.schema([*WORD_IMAGES, *more]))

    def add(
        self, id: str, image: bytes | None, text: bytes | str | None, source: str, lexicon: Sequence[str] = ()
    ) -> None:
        """Add one word, or count why it is left out."""
        decoded = _decode(text)
        size = None if image is None else _image_size(image)
        reason = self._reason(image, text, decoded, size)
        if reason:
            self.dropped[reason] += 1
            return
        assert size is not None
        row = {"id": id, "image": image, "width": size[0], "height": size[1], "text": decoded, "source": source}
        self._table.add(**row, **({"lexicon": list(lexicon)} if self.lexicons else {}))

    def _reason(self, image: object, text: object, decoded: str | None, size: object) -> str:
        allowed = ALPHABETS[self.alphabet]
        checks = {
            "no image": image is None,
            "image unreadable": size is None,
            "no label": text is None,
            "label not UTF-8": decoded is None,
            "label empty": decoded == "",
            f"label not {self.alphabet}": bool(allowed) and not set(decoded or "") <= allowed,
        }
        return next((reason for reason, holds in checks.items() if holds), "")

    def build(self) -> Split:
        """Return the words as a split."""
        return Split(self._table.table())


def _decode(text: bytes | str | None) -> str | None:
    try:
        return text.decode("utf-8").strip() if isinstance(text, bytes) else text.strip() if text is not None else None
    except UnicodeDecodeError:
        return None


def _image_size(image: bytes) -> tuple[int, int] | None:
    """Return width and height, or None if the image cannot be decoded completely."""
    try:
        return measure_image(image, "", whole=True)
    except DataError:
        return None


def build_word_dataset(name: str, builders: Mapping[str, WordSplitBuilder], licence: str) -> Dataset:
    """Build the data set of these splits; its hash covers labels and images."""
    splits = {part: builder.build() for part, builder in builders.items()}
    card = {
        "licence": licence,
        "words": {part: len(split) for part, split in splits.items()},
        "sources": {part: _count(split.examples["source"]) for part, split in splits.items()},
        "dropped": {part: dict(builder.dropped) for part, builder in builders.items()},
        "image": "as in its source",
    }
    return Dataset(name, splits, content_sha256(splits, exclude=()), card)


def _count(column: pa.ChunkedArray) -> dict[str, int]:
    return dict(sorted(Counter(column.to_pylist()).items()))
