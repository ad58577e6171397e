"""Images of words of one or two letters, each a thick bar high or low, for tests of word recognizers."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from PIL import Image

from simfl.data.base import Data, Dataset, Split
from simfl.data.io.arrow_store import content_sha256

WORDS = ("a", "b", "ab")


@dataclass(frozen=True)
class Bars(Data):
    """Letter a is a bar above, b one below; each client has all three words."""

    train: int = 64
    valid: int = 32
    clients: int = 2

    def load(self, cache: Path) -> Dataset:
        splits = {"train": self._split(1, self.train), "valid": self._split(2, self.valid)}
        return Dataset("bars", splits, content_sha256(splits), {})

    def _split(self, stream: int, count: int) -> Split:
        rng = np.random.default_rng(stream)
        texts = [WORDS[k] for k in rng.integers(0, 3, count)]
        columns = {
            "id": [f"w{stream}.{i}" for i in range(count)],
            "image": [draw_image(text, rng) for text in texts],
            "text": [text.upper() if i % 2 else text for i, text in enumerate(texts)],
            "client": pa.array(np.arange(count) % self.clients, pa.int32()),
        }
        return Split(pa.table(columns))


def draw_image(text: str, rng: np.random.Generator) -> bytes:
    """32 × 64 pixels of grey noise with a bright bar for each letter."""
    array, out = rng.integers(60, 100, (32, 64)).astype(np.uint8), io.BytesIO()
    for place, letter in enumerate(text):
        top = 4 if letter == "a" else 18
        array[top : top + 10, 32 * place + 6 : 32 * place + 26] = 230
    Image.fromarray(array).save(out, "PNG")
    return out.getvalue()
