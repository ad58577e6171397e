"""Pretrain the tiny VT5: its page reader on drawn pages, then copying from drawn documents, then synthetic invoices.

    python experiments/pretrain/train.py OUT PREPARED.npz [--last page] [--device cuda] [--scale 1.0]

PREPARED.npz is the output of prepare.py. OUT/STAGE/ is written after `page`, `mixed` and `invoices`: weights that simfl
loads, and the learning curve so far. `--last` is the last stage. The weights of a stage do not depend on later stages.
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
from stages import NAMES, BatchSource, Stage, scaled
from step import TrainingStep
from tables import WordTable
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
CURVE_STEPS = 50  # between two rows of the curve
EVALUATED = 512  # documents per evaluation


def new_network(tokenizer: tokenizers.Tokenizer, seed: int, bf16: bool) -> VT5Network:
    """Build the tiny VT5 with this vocabulary, a tied head and no dropout."""
    size = tokenizer.get_vocab_size(with_added_tokens=True)
    with seeded(seed):
        model = VT5(size="tiny", head="tied", vocab_size=size, dropout=0.0, precision="bf16" if bf16 else "float32")
        network = install_keyed_dropout(model.network()).eval()
    network.tokenizer = Tokenizer(tokenizer, network.vision.config.image_size)
    return network


def trained_parameters(network: VT5Network) -> list[nn.Parameter]:
    """Return all parameters except those of the page reader."""
    return [p for name, p in network.named_parameters() if not name.startswith("vision.")]


def task_loss(network: VT5Network, inputs: dict[str, Tensor]) -> Tensor:
    """Return the mean cross-entropy of the answer tokens."""
    return nn.functional.cross_entropy(
        network(**inputs).logits.flatten(0, 1), inputs["labels"].flatten(), ignore_index=-100
    )


@torch.no_grad()
def evaluate(network: VT5Network, source: BatchSource, stage: Stage) -> dict[str, float]:
    """Return the share of answers with all tokens correct, teacher-forced, on new documents and held-out invoices."""
    shares = {}
    for name, part in (
        ("drawn", source.drawn(EVALUATED, stage)),
        ("invoices", source.invoices(EVALUATED, stage, held_out=True)),
    ):
        best = network(**source.inputs(part)).logits.argmax(-1)
        shares[f"exact_{name}"] = round(float(((best == part.labels) | (part.labels < 0)).all(1).float().mean()), 4)
    return shares


class Training:
    """Training through all stages. `curve` has the evaluations so far, `step.masters` the weights."""

    def __init__(self, network: VT5Network, source: BatchSource) -> None:
        self.network, self.source = network, source
        self.step = TrainingStep(trained_parameters(network), lambda inputs: task_loss(network, inputs), DECAY, CLIP)
        self.curve: list[dict[str, object]] = []
        self.started, self.num_steps, self.num_examples = time.perf_counter(), 0, 0
        self.share = 1.0  # of the peak learning rate

    def run(self, stage: Stage) -> None:
        """Take all steps of a stage, or stop when the share of exact answers reaches `stage.stop_at`."""
        batches = self.source.batches(stage)
        self.step.prepare(next(batches))
        taken, exact = 0, 0.0
        while taken < stage.steps and exact < stage.stop_at:
            count = min(stage.steps - taken, CURVE_STEPS - self.num_steps % CURVE_STEPS)
            loss = self._steps(stage, range(taken, taken + count), batches)
            exact = self._evaluate(stage, loss)
            taken += count
        self.share = stage.final_rate

    def _steps(self, stage: Stage, steps: range, batches: Iterator[dict[str, Tensor]]) -> float:
        """Take steps of a stage and return their mean loss."""
        total = torch.zeros_like(self.step.rate)
        for local in steps:
            share = self.share + (stage.final_rate - self.share) * local / stage.steps
            self.step.set_rate(LEARNING_RATE * share * min(1.0, (self.num_steps + 1) / WARM_UP))
            total += self.step(next(batches))
            self.num_steps, self.num_examples = self.num_steps + 1, self.num_examples + stage.batch
        return float(total) / len(steps)

    def _evaluate(self, stage: Stage, loss: float) -> float:
        """Append a row to the curve and return the share of exact answers on drawn documents."""
        row = {"stage": stage.name, "step": self.num_steps, "examples": self.num_examples, "loss": round(loss, 4)}
        shares = evaluate(self.network, self.source, stage)
        self.curve.append(row | shares | {"seconds": round(time.perf_counter() - self.started, 1)})
        print(*self.curve[-1].values(), flush=True)
        return shares["exact_drawn"]

    def write(self, out: Path) -> None:
        """Write the weights, the tokenizer and the curve to `out`."""
        whole = copy.deepcopy(self.network).float()
        for parameter, master in zip(trained_parameters(whole), self.step.masters, strict=True):
            parameter.data.copy_(master)
        save_vt5(whole, out)
        with (out / "curve.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, list(self.curve[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(self.curve)


def pretrain(out: Path, prepared: dict[str, np.ndarray], device: torch.device, last: str, scale: float = 1.0) -> None:
    """Train all stages up to `last`; write OUT/STAGE after the last stage and after those that are saved."""
    started = time.perf_counter()
    tokenizer = tokenizers.Tokenizer.from_file(str(TOKENIZER))
    table = WordTable.load(prepared).to(device)
    network = new_network(tokenizer, seed_for("pretrain", "weights"), bf16=device.type == "cuda").to(device)
    drawer = Drawer(table, {mark: tokenizer.get_vocab()[mark] for mark in ":?"}, seed_for("pretrain", "drawer"))
    source = BatchSource(
        drawer, Corpus(prepared, table, seed_for("pretrain", "corpus")), network.vision.config.image_size
    )
    stages = scaled(scale)
    pages = source.batches(stages[-1])  # half of these pages are synthetic invoices, for any last stage
    steps = max(2, round(READER_STEPS * scale))
    errors = train_reader(network, lambda: next(pages)["pixel_values"], steps, READER_RATE, drawer.random)
    print(f"page reader after {time.perf_counter() - started:.1f} s: {errors}", flush=True)
    network.vision.requires_grad_(False)
    training = Training(network, source)
    for stage in stages[: NAMES.index(last) + 1]:
        training.run(stage)
        if stage.saved or stage.name == last:
            training.write(out / stage.name)
            print(f"saved {stage.name} after {time.perf_counter() - started:.1f} s", flush=True)


def main() -> None:
    """Load the prepared data, train and write the weights."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("prepared", type=Path)
    parser.add_argument("--last", choices=NAMES, default=NAMES[-1])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on steps and batches, to try out the recipe")
    given = parser.parse_args()
    prepared = dict(np.load(given.prepared))
    print(f"prepared {digest(prepared)}", flush=True)
    pretrain(given.out, prepared, torch.device(given.device), given.last, given.scale)


if __name__ == "__main__":
    main()
