"""Pretrain the tiny VT5: its page reader on drawn pages, then copying out of drawn documents, then made invoices.

    python experiments/pretrain/train.py OUT PREPARED.npz [--last page] [--device cuda] [--scale 1.0]

PREPARED.npz is prepare.py's. Leaves OUT/STAGE/ after `page`, `mixed` and `invoices`, each a start that `simfl` loads
with the curve so far; `--last` is the stage to end with. Weights of a stage do not depend on what comes after it.
"""

from __future__ import annotations

import argparse
import copy
import csv
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import tokenizers
import torch
from corpus import Corpus
from drawer import Drawer
from pages import train_reader
from prepare import TOKENIZER, digest
from stages import NAMES, Source, Stage, scaled
from step import Step
from tables import Table
from torch import Tensor, nn

from simfl.models.base import seeded
from simfl.models.dropout import install_keyed_dropout
from simfl.models.tokenizer import Tokenizer
from simfl.models.vt5 import VT5
from simfl.models.vt5_checkpoint import save_vt5
from simfl.models.vt5_network import VT5Network
from simfl.seeds import seed_for

LEARNING_RATE, WARM_UP, DECAY, CLIP = 1e-3, 400, 0.01, 1.0
READER_STEPS, READER_RATE = 500, 1e-3
EACH = 50  # steps between two rows of the curve
MEASURED = 512  # documents


def new_network(tokenizer: tokenizers.Tokenizer, seed: int, bf16: bool) -> VT5Network:
    """The tiny VT5 with this vocabulary, its head tied, without dropout."""
    size = tokenizer.get_vocab_size(with_added_tokens=True)
    with seeded(seed):
        model = VT5(size="tiny", head="tied", vocab_size=size, dropout=0.0, precision="bf16" if bf16 else "float32")
        network = install_keyed_dropout(model.network()).eval()
    network.tokenizer = Tokenizer(tokenizer, network.vision.config.image_size)
    return network


def trained_parameters(network: VT5Network) -> list[nn.Parameter]:
    """All but the page reader's."""
    return [p for name, p in network.named_parameters() if not name.startswith("vision.")]


def task_loss(network: VT5Network, inputs: dict[str, Tensor]) -> Tensor:
    """Mean cross-entropy of the answers' pieces."""
    return nn.functional.cross_entropy(
        network(**inputs).logits.flatten(0, 1), inputs["labels"].flatten(), ignore_index=-100
    )


@torch.no_grad()
def measure(network: VT5Network, source: Source, stage: Stage) -> dict[str, float]:
    """Share of answers right in every piece, teacher-forced, on new drawn documents and on invoices kept apart."""
    shares = {}
    for name, part in (
        ("drawn", source.drawn(MEASURED, stage)),
        ("invoices", source.invoices(MEASURED, stage, held=True)),
    ):
        best = network(**source.inputs(part)).logits.argmax(-1)
        shares[f"exact_{name}"] = round(float(((best == part.labels) | (part.labels < 0)).all(1).float().mean()), 4)
    return shares


class Training:
    """The steps of all stages, one after the other; `curve` is what was measured so far, `step.masters` the weights."""

    def __init__(self, network: VT5Network, source: Source) -> None:
        self.network, self.source = network, source
        self.step = Step(trained_parameters(network), lambda inputs: task_loss(network, inputs), DECAY, CLIP)
        self.curve: list[dict[str, float | str]] = []
        self.begun, self.done, self.seen = time.perf_counter(), 0, 0
        self.share = 1.0  # of the peak learning rate

    def run(self, stage: Stage) -> None:
        """All steps of a stage, or as many as it takes to get `stage.until` right."""
        batches = self.source.batches(stage)
        self.step.shape(next(batches))
        taken, exact = 0, 0.0
        while taken < stage.steps and exact < stage.until:
            count = min(stage.steps - taken, EACH - self.done % EACH)
            loss = self._steps(stage, range(taken, taken + count), batches)
            exact = self._measure(stage, loss)
            taken += count
        self.share = stage.final_rate

    def _steps(self, stage: Stage, which: range, batches: Iterator[dict[str, Tensor]]) -> float:
        """Take steps of a stage; their mean loss."""
        total = torch.zeros_like(self.step.rate)
        for local in which:
            share = self.share + (stage.final_rate - self.share) * local / stage.steps
            self.step.set_rate(LEARNING_RATE * share * min(1.0, (self.done + 1) / WARM_UP))
            total += self.step(next(batches))
            self.done, self.seen = self.done + 1, self.seen + stage.batch
        return float(total) / len(which)

    def _measure(self, stage: Stage, loss: float) -> float:
        """Append a row to the curve; the share of drawn documents that is right."""
        row = {"stage": stage.name, "step": self.done, "examples": self.seen, "loss": round(loss, 4)}
        shares = measure(self.network, self.source, stage)
        self.curve.append(row | shares | {"seconds": round(time.perf_counter() - self.begun, 1)})
        print(*self.curve[-1].values(), flush=True)
        return shares["exact_drawn"]

    def write(self, out: Path) -> None:
        """The start in `out`: the page reader, these weights and the tokenizer; the curve."""
        whole = copy.deepcopy(self.network).float()
        for parameter, master in zip(trained_parameters(whole), self.step.masters, strict=True):
            parameter.data.copy_(master)
        save_vt5(whole, out)
        with (out / "curve.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, list(self.curve[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(self.curve)


def pretrain(out: Path, prepared: dict[str, np.ndarray], device: torch.device, last: str, scale: float = 1.0) -> None:
    """All stages up to `last`; OUT/STAGE is written after this one and those that are kept."""
    begun = time.perf_counter()
    tokenizer = tokenizers.Tokenizer.from_file(str(TOKENIZER))
    table = Table.load(prepared).to(device)
    network = new_network(tokenizer, seed_for("pretrain", "weights"), bf16=device.type == "cuda").to(device)
    drawer = Drawer(table, {mark: tokenizer.token_to_id(mark) for mark in ":?"}, seed_for("pretrain", "drawer"))
    source = Source(drawer, Corpus(prepared, table, seed_for("pretrain", "corpus")), network.vision.config.image_size)
    stages = scaled(scale)
    pages = source.batches(stages[-1])  # half of these pages are those of made invoices, whichever stage is the last
    steps = max(2, round(READER_STEPS * scale))
    errors = train_reader(network, lambda: next(pages)["pixel_values"], steps, READER_RATE, drawer.dice)
    print(f"page reader after {time.perf_counter() - begun:.1f} s: {errors}", flush=True)
    network.vision.requires_grad_(False)
    training = Training(network, source)
    for stage in stages[: NAMES.index(last) + 1]:
        training.run(stage)
        if stage.keep or stage.name == last:
            training.write(out / stage.name)
            print(f"kept {stage.name} after {time.perf_counter() - begun:.1f} s", flush=True)


def main() -> None:
    """Load what was prepared, train, write."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("prepared", type=Path)
    parser.add_argument("--last", choices=NAMES, default=NAMES[-1])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--scale", type=float, default=1.0, help="of steps and batches, for trying it out")
    given = parser.parse_args()
    prepared = dict(np.load(given.prepared))
    print(f"prepared {digest(prepared)}", flush=True)
    pretrain(given.out, prepared, torch.device(given.device), given.last, given.scale)


if __name__ == "__main__":
    main()
