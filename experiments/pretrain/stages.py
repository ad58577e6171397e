"""The stages of the pretraining, and the batches each is trained on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from corpus import Corpus
from drawer import Drawer
from encoding import Encoded, encode
from pages import page_images
from torch import Tensor

from simfl.seeds import rng

CHUNK = 16  # batches drawn together


@dataclass(frozen=True)
class Stage:
    """Some steps on documents of one size."""

    name: str
    steps: int
    batch: int
    length: int  # pieces a document is cut to; with 17 patches a multiple of 8, which fused attention wants
    rows: int  # of a drawn document, at most
    invoices: float  # share of made invoices in a batch
    final_rate: float  # the learning rate moves to this share of the peak, linearly over the stage
    keep: bool = False  # whether its weights are written
    until: float = 2.0  # the stage ends early once this share of new drawn documents is answered exactly


STAGES = (
    Stage("short", 3000, 1024, 79, 4, 0.0, 1.0, until=0.85),
    Stage("middle", 500, 512, 127, 9, 0.0, 1.0),
    Stage("page", 400, 512, 191, 14, 0.0, 1.0, keep=True),
    Stage("mixed", 600, 512, 191, 14, 0.5, 0.6, keep=True),
    Stage("invoices", 1300, 512, 191, 14, 0.5, 0.02, keep=True),
)
NAMES = tuple(stage.name for stage in STAGES)


def scaled(scale: float) -> tuple[Stage, ...]:
    """All stages with their steps and batches scaled, to try the recipe out."""
    return tuple(
        replace(stage, steps=max(2, round(stage.steps * scale)), batch=max(8, round(stage.batch * scale)))
        for stage in STAGES
    )


class Source:
    """Batches of a stage: drawn documents, made invoices, and their pages."""

    def __init__(self, drawer: Drawer, corpus: Corpus, image_size: int) -> None:
        self.drawer, self.corpus, self.image_size = drawer, corpus, image_size
        self.rows = rng("pretrain", "rows")  # on the host, so that the device is not waited for

    def drawn(self, count: int, stage: Stage) -> Encoded:
        """Drawn documents, all of the same number of rows."""
        rows = int(self.rows.integers(max(2, stage.rows // 2), stage.rows + 1))
        return self.drawer.draw(count, rows, stage.length)

    def invoices(self, count: int, stage: Stage, held: bool = False) -> Encoded:
        """Made invoices."""
        return encode(self.drawer.table, self.corpus.draw(count, held), stage.length)

    def inputs(self, encoded: Encoded) -> dict[str, Tensor]:
        """What the model reads, with pages each as dark as it likes."""
        asked = encoded.asked
        ink = 0.2 + 0.6 * self.drawer.dice.uniform(len(asked.words), 1, 1)
        pages = page_images(asked.boxes, (asked.words >= 0).float(), ink, self.image_size)
        return encoded.inputs() | {"pixel_values": pages}

    def batches(self, stage: Stage) -> Iterator[dict[str, Tensor]]:
        """Batches without end, drawn CHUNK at a time and shuffled."""
        made = round(stage.batch * CHUNK * stage.invoices)
        quarter = -(-(stage.batch * CHUNK - made) // 4)
        while True:
            parts = [self.inputs(self.drawn(quarter, stage)) for _ in range(4)]
            if made:
                parts.append(self.inputs(self.invoices(made, stage)))
            order = self.drawer.dice.uniform(4 * quarter + made).argsort()
            whole = {name: torch.cat([part[name] for part in parts])[order] for name in parts[0]}
            for index in range(CHUNK):
                rows = slice(index * stage.batch, (index + 1) * stage.batch)
                yield {name: tensor[rows] for name, tensor in whole.items()}
