"""Hand-made splits of pages, and a tokenizer with one token per letter."""

from __future__ import annotations

import io
from dataclasses import dataclass

import pyarrow as pa
from PIL import Image

from simfl.data.base import DOCUMENTS, QUESTIONS, Split


@dataclass(frozen=True)
class Letters:
    """A tokenizer with one token per letter: a is 10, b is 11, …; other characters are 9, the end token is 1."""

    image_size: int = 4
    box_scale: int = 1000
    start_id: int = 1
    end_id: int = 1

    def encode(self, texts: list[str]) -> list[list[int]]:
        return [[ord(c) - 87 if c.isalpha() else 9 for c in text] for text in texts]

    def decode(self, tokens: list[list[int]]) -> list[str]:
        return ["".join(chr(p + 87) for p in row[: row.index(1)] if p) if 1 in row else "" for row in tokens]


def png(color: tuple[int, int, int], size: tuple[int, int] = (6, 8)) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", size, color).save(out, "PNG")
    return out.getvalue()


def page(words: list[str], boxes: list[float], image: bytes | None = None, name: str = "d") -> dict[str, object]:
    return {
        "id": name,
        "provider": "p",
        "words": words,
        "boxes": boxes,
        "image": image,
        "width": 6,
        "height": 8,
    }


def question(document: int, text: str, answers: list[str], name: str = "q") -> dict[str, object]:
    return {"id": name, "document": document, "question": text, "answers": answers, "field": "total"}


def split(documents: list[dict[str, object]], questions: list[dict[str, object]]) -> Split:
    return Split(pa.Table.from_pylist(questions, schema=QUESTIONS), pa.Table.from_pylist(documents, schema=DOCUMENTS))
