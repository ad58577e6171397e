"""Pretrain the tiny VT5: its page reader on drawn pages, then copying out of drawn documents, then made invoices.

    python experiments/pretrain/train.py OUT PREPARED.npz [--device cuda] [--scale 1.0] [--stages N]

Leaves OUT/<stage>/ after the stages marked for keeping: a start that `simfl` loads, and the curve so far.
"""

from __future__ import annotations

import argparse
import copy
import csv
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import tokenizers
import torch
from corpus import Corpus
from drawer import Drawer
from encoding import Encoded, encode
from pages import page_images, train_reader
from prepare import TOKENIZER, digest
from step import Step
from tables import Table
from torch import Tensor, nn

from simfl.models import start
from simfl.models.base import seeded
from simfl.models.dropout import install
from simfl.models.tokenizer import Tokenizer
from simfl.models.vt5 import VT5
from simfl.models.vt5_network import VT5Network
from simfl.seeds import rng, seed_for

LEARNING_RATE, WARM_UP, DECAY, CLIP = 1e-3, 400, 0.01, 1.0
Rows = list[dict[str, float | str]]
READER_STEPS, READER_RATE = 500, 1e-3
EACH = 50  # steps between two rows of the curve
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
    keep: bool = False
    until: float = 2.0  # the stage ends early once this share of new drawn documents is answered exactly


STAGES = (
    Stage("short", 3000, 1024, 79, 4, 0.0, 1.0, until=0.85),
    Stage("middle", 500, 512, 127, 9, 0.0, 1.0),
    Stage("page", 400, 512, 191, 14, 0.0, 1.0, keep=True),
    Stage("mixed", 600, 512, 191, 14, 0.5, 0.6, keep=True),
    Stage("invoices", 1300, 512, 191, 14, 0.5, 0.02, keep=True),
)


def new_network(tokenizer: tokenizers.Tokenizer, seed: int, bf16: bool) -> VT5Network:
    """The tiny VT5 with this vocabulary, its head tied, without dropout."""
    size = tokenizer.get_vocab_size(with_added_tokens=True)
    with seeded(seed):
        model = VT5(size="tiny", head="tied", vocab_size=size, dropout=0.0, precision="bf16" if bf16 else "float32")
        network = install(model.network()).eval()
    network.text = Tokenizer(tokenizer, network.vision.config.image_size)
    return network


class Source:
    """Batches of a stage: drawn documents, made invoices, and their pages."""

    def __init__(self, drawer: Drawer, corpus: Corpus, image_size: int) -> None:
        self.drawer, self.corpus, self.image_size = drawer, corpus, image_size
        self.dice = rng("pretrain", "rows")  # on the host, so that the device is not waited for

    def drawn(self, count: int, stage: Stage) -> Encoded:
        """Drawn documents, all of the same number of rows."""
        rows = int(self.dice.integers(max(2, stage.rows // 2), stage.rows + 1))
        return self.drawer.draw(count, rows, stage.length)

    def invoices(self, count: int, stage: Stage, held: bool = False) -> Encoded:
        """Made invoices."""
        return encode(self.drawer.table, self.corpus.draw(count, held), stage.length)

    def inputs(self, encoded: Encoded) -> dict[str, Tensor]:
        """What the model reads, with pages each as dark as it likes."""
        asked = encoded.asked
        ink = 0.2 + 0.6 * self.drawer.uniform(len(asked.words), 1, 1)
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
            order = self.drawer.uniform(4 * quarter + made).argsort()
            whole = {name: torch.cat([part[name] for part in parts])[order] for name in parts[0]}
            for index in range(CHUNK):
                rows = slice(index * stage.batch, (index + 1) * stage.batch)
                yield {name: tensor[rows] for name, tensor in whole.items()}


def task_loss(network: VT5Network, inputs: dict[str, Tensor]) -> Tensor:
    """Mean cross-entropy of the answers' pieces."""
    return nn.functional.cross_entropy(
        network(**inputs).logits.flatten(0, 1), inputs["labels"].flatten(), ignore_index=-100
    )


@torch.no_grad()
def measure(network: VT5Network, source: Source, stage: Stage) -> dict[str, float]:
    """Share of answers right in every piece, teacher-forced, on new drawn documents and on invoices kept apart."""
    shares = {}
    for name, part in (("drawn", source.drawn(512, stage)), ("invoices", source.invoices(512, stage, held=True))):
        best = network(**source.inputs(part)).logits.argmax(-1)
        shares[f"exact_{name}"] = round(float(((best == part.labels) | (part.labels < 0)).all(1).float().mean()), 4)
    return shares


def train(
    network: VT5Network, source: Source, stages: tuple[Stage, ...], keep: Callable[[str, Rows, list[Tensor]], None]
) -> None:
    """All stages; after those to be kept, `keep` gets the name, the curve so far and the float32 weights."""
    step = Step(trained_parameters(network), lambda inputs: task_loss(network, inputs), DECAY, CLIP)
    curve: Rows = []
    begun, done, seen, peak = time.perf_counter(), 0, 0, 1.0
    for stage in stages:
        batches = source.batches(stage)
        step.shape(next(batches))
        total, since = torch.zeros_like(step.rate), 0
        for local in range(stage.steps):
            share = peak + (stage.final_rate - peak) * local / stage.steps
            step.set_rate(LEARNING_RATE * share * min(1.0, (done + 1) / WARM_UP))
            total += step(next(batches))
            done, seen, since = done + 1, seen + stage.batch, since + 1
            if done % EACH == 0 or local == stage.steps - 1:
                row = {"stage": stage.name, "step": done, "examples": seen, "loss": round(float(total) / since, 4)}
                curve.append(row | measure(network, source, stage) | {"seconds": round(time.perf_counter() - begun, 1)})
                total.zero_()
                since = 0
                if done % (2 * EACH) == 0:
                    print(*curve[-1].values(), flush=True)
                if float(curve[-1]["exact_drawn"]) >= stage.until:
                    break
        peak = stage.final_rate
        if stage.keep:
            keep(stage.name, curve, step.masters)


def trained_parameters(network: VT5Network) -> list[nn.Parameter]:
    """All but the page reader's."""
    return [p for name, p in network.named_parameters() if not name.startswith("vision.")]


def write(out: Path, network: VT5Network, curve: Rows, masters: list[Tensor]) -> None:
    """The start in `out`: the page reader of `network` and these weights, in the trained ones' order; the curve."""
    whole = copy.deepcopy(network).float()
    for parameter, master in zip(trained_parameters(whole), masters, strict=True):
        parameter.data.copy_(master)
    start.save(whole, out)
    with (out / "curve.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(curve[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(curve)


def main() -> None:
    """Load what was prepared, train, write."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("prepared", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--scale", type=float, default=1.0, help="of steps and batches, for trying it out")
    parser.add_argument("--stages", type=int, default=len(STAGES), help="how many of them")
    given = parser.parse_args()
    device, begun = torch.device(given.device), time.perf_counter()
    prepared = dict(np.load(given.prepared))
    table = Table.load(prepared).to(device)
    tokenizer = tokenizers.Tokenizer.from_file(str(TOKENIZER))
    network = new_network(tokenizer, seed_for("pretrain", "weights"), bf16=device.type == "cuda").to(device)
    drawer = Drawer(table, {mark: tokenizer.token_to_id(mark) for mark in ":?"}, seed_for("pretrain", "drawer"))
    source = Source(drawer, Corpus(prepared, table, seed_for("pretrain", "corpus")), network.vision.config.image_size)
    print(
        f"prepared {digest(prepared)}, {len(table.words)} words, loaded in {time.perf_counter() - begun:.1f} s",
        flush=True,
    )
    stages = tuple(
        replace(stage, steps=max(2, round(stage.steps * given.scale)), batch=max(8, round(stage.batch * given.scale)))
        for stage in STAGES[: given.stages]
    )
    pages = source.batches(stages[-1])
    reader = train_reader(
        network, lambda: next(pages)["pixel_values"], max(2, round(READER_STEPS * given.scale)), READER_RATE, drawer
    )
    print(f"page reader after {time.perf_counter() - begun:.1f} s: {reader}", flush=True)
    network.vision.requires_grad_(False)

    def keep(name: str, curve: Rows, masters: list[Tensor]) -> None:
        write(given.out / name, network, curve, masters)
        print(f"kept {name} after {time.perf_counter() - begun:.1f} s", flush=True)

    train(network, source, stages, keep)
    print(f"done after {time.perf_counter() - begun:.1f} s", flush=True)


if __name__ == "__main__":
    main()
