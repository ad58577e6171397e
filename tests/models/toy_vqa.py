"""Images with one coloured half and questions about it, for tests of models that read text and image."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from PIL import Image

from simfl.data.base import Data, Dataset, Split
from simfl.data.io.arrow_store import content_sha256
from simfl.objectives.vqa import Vqa
from simfl.protocol import Batch

COLOURS = ((220, 40, 40), (40, 220, 40), (60, 60, 230))
CORNERS = ("north", "south")
ANSWERS = (*(f"{name}" for name in ("red", "green", "blue")), *CORNERS)  # what colour?   which side?


@dataclass(frozen=True)
class Corners(Data):
    """Half of the questions ask for the colour (3 answers), half for the side (2); each client has both."""

    train: int = 96
    valid: int = 48
    clients: int = 3
    size: int = 32

    def load(self, cache: Path) -> Dataset:
        splits = {"train": self._split(1, self.train), "valid": self._split(2, self.valid)}
        return Dataset("corners", splits, content_sha256(splits), {"num_classes": len(ANSWERS)})

    def _split(self, stream: int, count: int) -> Split:
        rng = np.random.default_rng(stream)
        colour, corner, kind = rng.integers(0, 3, count), rng.integers(0, 2, count), rng.integers(0, 2, count)
        label = np.where(kind == 0, colour, 3 + corner)
        pages = [
            {
                "id": f"{stream}.{i}",
                "image": draw_image(COLOURS[colour[i]], corner[i], self.size),
                "words": [ANSWERS[colour[i]], CORNERS[corner[i]]],  # for models of documents
                "boxes": [0.1, 0.1, 0.4, 0.2, 0.6, 0.7, 0.9, 0.8],
            }
            for i in range(count)
        ]
        asked = {
            "id": [f"q{stream}.{i}" for i in range(count)],
            "document": pa.array(np.arange(count), pa.int32()),
            "question": [("what paid", "which side")[k] for k in kind],
            "answers": [[ANSWERS[k]] for k in label],
            "label": pa.array(label, pa.int32()),
            "provider": [f"c{i % self.clients}" for i in range(count)],
            "group": [f"c{i % self.clients}" for i in range(count)],
        }
        return Split(pa.table(asked), pa.Table.from_pylist(pages))


def draw_image(colour: tuple[int, int, int], corner: int, size: int) -> bytes:
    """A grey square whose upper or lower half has the colour."""
    array, out = np.full((size, size, 3), 90, np.uint8), io.BytesIO()
    array[: size // 2] = colour if corner == 0 else 90
    array[size // 2 :] = colour if corner == 1 else 90
    Image.fromarray(array).save(out, "PNG")
    return out.getvalue()


def batch(tokenizer: object, rows: int, objective: Vqa | None = None, split: str = "train") -> Batch:
    """The inputs of the first rows."""
    objective = objective or Vqa()
    given = objective.encode(Corners().load(Path()).splits[split], tokenizer).take(torch.arange(rows))
    return {name: given[name] for name in objective.inputs if name in given}
