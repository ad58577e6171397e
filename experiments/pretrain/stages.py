"""The stages of the pretraining, and the batches of each stage."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from corpus import Corpus
from drawer import Drawer
from encoding import EncodedBatch, encode
from pages import page_images
from torch import Tensor

from simfl.seeds import rng

CHUNK = 16  # batches drawn together


@dataclass(frozen=True)
class Stage:
    """A number of steps on documents of one size."""

    name: str
    steps: int
    batch: int
    length: int  # maximum tokens of a document; with 17 patches a multiple of 8, which fused attention needs
    rows: int  # maximum rows of a drawn document
    invoices: float  # share of synthetic invoices in a batch
    final_rate: float  # share of the peak learning rate at the end, reached linearly over the stage
    saved: bool = False  # whether its weights are written
    stop_at: float = 2.0  # the stage ends early when this share of new drawn documents is answered exactly


STAGES = (
    Stage("short", 3000, 1024, 79, 4, 0.0, 1.0, stop_at=0.85),
    Stage("middle", 500, 512, 127, 9, 0.0, 1.0),
    Stage("page", 400, 512, 191, 14, 0.0, 1.0, saved=True),
    Stage("mixed", 600, 512, 191, 14, 0.5, 0.6, saved=True),
    Stage("invoices", 1300, 512, 191, 14, 0.5, 0.02, saved=True),
)
NAMES = tuple(stage.name for stage in STAGES)


def scaled(scale: float) -> tuple[Stage, ...]:
    """Return all stages with scaled steps and batches, to try out the recipe."""
    return tuple(
        replace(stage, steps=max(2, round(stage.steps * scale)), batch=max(8, round(stage.batch * scale)))
        for stage in STAGES
    )


class BatchSource:
    """Source of the batches of a stage: drawn documents, synthetic invoices, and their pages."""

    def __init__(self, drawer: Drawer, corpus: Corpus, image_size: int) -> None:
        self.drawer, self.corpus, self.image_size = drawer, corpus, image_size
        self.rows = rng("pretrain", "rows")  # on the host, to avoid waiting for the device

    def drawn(self, count: int, stage: Stage) -> EncodedBatch:
        """Draw documents that all have the same number of rows."""
        rows = int(self.rows.integers(max(2, stage.rows // 2), stage.rows + 1))
        return self.drawer.draw(count, rows, stage.length)

    def invoices(self, count: int, stage: Stage, held_out: bool = False) -> EncodedBatch:
        """Sample synthetic invoices."""
        return encode(self.drawer.table, self.corpus.draw(count, held_out), stage.length)

    def inputs(self, encoded: EncodedBatch) -> dict[str, Tensor]:
        """Return the inputs of the model, with pages of random darkness."""
        source = encoded.source
        ink = 0.2 + 0.6 * self.drawer.random.uniform(len(source.words), 1, 1)
        pages = page_images(source.boxes, (source.words >= 0).float(), ink, self.image_size)
        return encoded.inputs() | {"pixel_values": pages}

    def batches(self, stage: Stage) -> Iterator[dict[str, Tensor]]:
        """Yield batches without end; CHUNK batches are drawn together and shuffled."""
        num_invoices = round(stage.batch * CHUNK * stage.invoices)
        quarter = -(-(stage.batch * CHUNK - num_invoices) // 4)
        while True:
            parts = [self.inputs(self.drawn(quarter, stage)) for _ in range(4)]
            if num_invoices:
                parts.append(self.inputs(self.invoices(num_invoices, stage)))
            order = self.drawer.random.uniform(4 * quarter + num_invoices).argsort()
            whole = {name: torch.cat([part[name] for part in parts])[order] for name in parts[0]}
            for index in range(CHUNK):
                rows = slice(index * stage.batch, (index + 1) * stage.batch)
                yield {name: tensor[rows] for name, tensor in whole.items()}
