"""A few pages of numbers, for tests of document models."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from PIL import Image

from simfl.data.base import DOCUMENTS, QUESTIONS, Data, Dataset, Split
from simfl.data.io.arrow_store import content_sha256


@dataclass(frozen=True)
class Pages(Data):
    """Pages of six numbers with a noisy image, from a few providers; the question asks for the first number."""

    train: int = 20
    valid: int = 8
    providers: int = 8

    def load(self, cache: Path) -> Dataset:
        splits = {"train": self._split(1, self.train), "valid": self._split(2, self.valid)}
        return Dataset("pages", splits, content_sha256(splits))

    def _split(self, stream: int, count: int) -> Split:
        rng = np.random.default_rng(stream)
        pages = [_page(rng, f"{stream}.{i}", f"provider {i % self.providers}") for i in range(count)]
        questions = [
            {
                "id": f"q{page['id']}",
                "document": i,
                "question": "what number?",
                "answers": page["words"][:1],
                "field": "first",
            }
            for i, page in enumerate(pages)
        ]
        return Split(pa.Table.from_pylist(questions, QUESTIONS), pa.Table.from_pylist(pages, DOCUMENTS))


def _page(rng: np.random.Generator, name: str, provider: str) -> dict:
    words, image = [str(n) for n in rng.integers(0, 1000, 6)], io.BytesIO()
    Image.fromarray(rng.integers(0, 255, (32, 32)).astype(np.uint8)).save(image, "PNG")
    corners = np.sort(0.9 * rng.random((6, 2, 2)), axis=1)  # left, top before right, bottom
    boxes = corners.astype(np.float32).reshape(-1).tolist()
    return {
        "id": name, "provider": provider, "words": words, "boxes": boxes, "image": image.getvalue(), "width": 32,
        "height": 32,
    }  # fmt: skip
