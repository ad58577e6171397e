"""Pictures of single words with what stands there: the split, what is refused and what is only counted.

Scene text sets have pictures that cannot be read and labels that no reader could write. They are left out and counted,
never replaced by a neighbour.
"""

from __future__ import annotations

import io
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa
from PIL import Image

from simfl.data.base import WORD_PICTURES, Dataset, Split
from simfl.data.io.arrow_store import content_sha256
from simfl.data.io.gather import Columns
from simfl.data.io.images import UNREADABLE

Alphabet = Literal["any", "printable", "alphanumeric"]
ALPHABETS: dict[Alphabet, frozenset[str]] = {
    "any": frozenset(),
    "printable": frozenset(string.digits + string.ascii_letters + string.punctuation),  # the 94 characters of ASTER
    "alphanumeric": frozenset(string.digits + string.ascii_letters),
}


@dataclass
class Words:
    """A split of word pictures while its sources are read."""

    alphabet: Alphabet  # words with other characters are left out
    lexicons: bool = False  # whether the words have lists of candidates
    dropped: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        more = [("lexicon", pa.list_(pa.string()))] if self.lexicons else []
        self._columns = Columns(pa.schema([*WORD_PICTURES, *more]))

    def add(
        self, id: str, image: bytes | None, text: bytes | str | None, source: str, lexicon: Sequence[str] = ()
    ) -> None:
        """One word; left out and counted if anything is wrong with it."""
        words = _decoded(text)
        size = None if image is None else _size(image)
        reason = self._reason(image, text, words, size)
        if reason:
            self.dropped[reason] += 1
            return
        assert size is not None
        more: dict[str, Any] = {"lexicon": list(lexicon)} if self.lexicons else {}
        self._columns.add(id=id, image=image, width=size[0], height=size[1], text=words, source=source, **more)

    def _reason(self, image: object, text: object, words: str | None, size: object) -> str:
        allowed = ALPHABETS[self.alphabet]
        checks = {
            "no image": image is None,
            "image unreadable": size is None,
            "no label": text is None,
            "label not UTF-8": words is None,
            "label empty": words == "",
            f"label not {self.alphabet}": bool(allowed) and not set(words or "") <= allowed,
        }
        return next((reason for reason, holds in checks.items() if holds), "")

    def split(self) -> Split:
        """The words as a table."""
        return Split(self._columns.table())


def _decoded(text: bytes | str | None) -> str | None:
    try:
        return text.decode("utf-8").strip() if isinstance(text, bytes) else text.strip() if text is not None else None
    except UnicodeDecodeError:
        return None


def _size(image: bytes) -> tuple[int, int] | None:
    """Width and height, or None if the picture cannot be decoded to its end."""
    try:
        with Image.open(io.BytesIO(image)) as opened:
            opened.load()
            return opened.size
    except UNREADABLE:
        return None


def finish(name: str, gathered: Mapping[str, Words], licence: str) -> Dataset:
    """The data set of these splits; its hash is of labels and pictures."""
    splits = {part: words.split() for part, words in gathered.items()}
    card = {
        "licence": licence,
        "words": {part: len(split) for part, split in splits.items()},
        "sources": {part: _count(split.examples["source"]) for part, split in splits.items()},
        "dropped": {part: dict(words.dropped) for part, words in gathered.items()},
        "image": "as its source has it",
    }
    return Dataset(name, splits, content_sha256(splits, exclude=()), card)


def _count(column: pa.ChunkedArray) -> dict[str, int]:
    return dict(sorted(Counter(column.to_pylist()).items()))
