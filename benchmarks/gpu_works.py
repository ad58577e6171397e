"""Works of published size for `benchmarks.gpu`. Their data are drawn from a seed, so nothing is learned from them.

work      model                     K         / round  / client         batch  training
cifar     CNN, 1.6 M, 32×32         1,000          50  50 images           10  SGD, dropout (pfl-research)
femnist   CNN, 1.2 M, 28×28, 62     3,400         100  30 images           10  SGD
t5_lora   T5-base, 512 tokens       60              6  30 texts            10  LoRA r = 6 on q, v, AdamW
vt5_full  VT5-base, 512 tokens      20              2  8 pages              4  AdamW, page reader frozen
          vt5_full_16, vt5_full_32: two batches of 16 and 32 pages a client
vilt      ViLT-base, 384×384        20              4  32 pairs             8  bottleneck adapters, AdamW
feddat    ViLT-base, 384×384        20              4  32 pairs             8  dual adapters of FedDAT, AdamW
dp        CNN of femnist            100             2  50 units of 30      10  SGD, clipped units, noise
million   MLP 60-400-62             1,000,000   1,000  2 examples          10  SGD
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.components import ImageClassification
from simfl.algorithms.base import Algorithm
from simfl.algorithms.fedavg import FedAvg
from simfl.algorithms.feddat import FedDat
from simfl.data.base import Data, Dataset, Split
from simfl.data.benchmarks.prototypes import Prototypes
from simfl.data.io.arrow_store import content_sha256, load_or_build
from simfl.data.partition.base import Partitioner
from simfl.data.partition.manifest import Partition
from simfl.data.partition.synthetic import Iid
from simfl.experiment import Evaluate, Execution, Experiment, Local, Phase, Privacy
from simfl.models.base import Model
from simfl.models.bottleneck import Bottleneck
from simfl.models.cnn import Cnn
from simfl.models.heads import HeadSpec
from simfl.models.lora import Lora
from simfl.models.mlp import Mlp
from simfl.models.vilt import Vilt
from simfl.models.vt5 import VT5
from simfl.objectives.base import Objective
from simfl.objectives.classification import Classification
from simfl.optimizers.local import LocalOptimizer
from simfl.protocol import Batch, Examples, Outputs
from simfl.seeds import rng

ADAMW = LocalOptimizer("adamw")


@dataclass(frozen=True)
class Numbered(Data):
    """Examples that consist of a number; the objectives below draw the inputs of a model for them."""

    examples: int = 1000
    classes: int = 100

    def load(self, cache: Path) -> Dataset:
        """Load from the cache, or build."""
        return load_or_build(cache, "numbered", 1, self, (), self._build)

    def _build(self) -> Dataset:
        splits = {
            name: Split(pa.table({"number": np.arange(count)}))
            for name, count in (("train", self.examples), ("valid", 8))
        }
        return Dataset("numbered", splits, content_sha256(splits), {"num_classes": self.classes})


@dataclass(frozen=True)
class Grouped(Partitioner):
    """Partition in file order, with groups of equal size in every client as units of privacy."""

    groups: int = 50

    def split(self, split: Split, seed: int) -> Partition:
        """Assign examples to clients and groups of (almost) equal size."""
        clients = self.num_clients(len(split), f"{len(split)} examples")
        owner = np.arange(len(split)) * clients // len(split)
        group = np.arange(len(split)) * clients * self.groups // len(split)
        names = pa.array([f"unit {k}" for k in range(clients * self.groups)])
        return Partition.from_owners(owner, clients, (group, names))


@dataclass(frozen=True)
class Reading(Objective):
    """Cross-entropy of random answers to random texts, with or without an image of the page."""

    reduction: ClassVar[str] = "token"
    inputs: ClassVar[tuple[str, ...]] = ("input_ids", "boxes", "attention_mask", "labels", "pixel_values")
    metric: ClassVar[str] = "accuracy"
    length: int = 512
    answer: int = 16
    page: bool = False

    def encode(self, split: Any, tokenizer: Any) -> Examples:
        """Draw the inputs of `VT5Network.forward`."""
        count, random = len(split), rng("reading", len(split))
        rows = {
            "input_ids": torch.from_numpy(random.integers(2, 32_000, (count, self.length))),
            "boxes": torch.from_numpy(random.random((count, self.length, 4), np.float32) * 999),
            "attention_mask": torch.ones(count, self.length, dtype=torch.int64),
            "labels": torch.from_numpy(random.integers(2, 32_000, (count, self.answer))),
        }
        if self.page:
            rows["pixel_values"] = torch.from_numpy(random.integers(0, 255, (count, 3, 224, 224), np.uint8))
        return Examples(rows)

    def loss(self, outputs: Outputs, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return sums over tokens and token counts."""
        picked = outputs.logits.log_softmax(-1).gather(-1, batch["labels"][..., None]).squeeze(-1)
        return -picked.sum(-1) * batch["mask"], batch["mask"] * picked.shape[-1]

    def predict(self, module: nn.Module, batch: Batch) -> dict[str, Any]:
        """Return the share of tokens that are right under teacher forcing."""
        inputs = {name: batch[name] for name in self.inputs if name in batch}
        return {"right": (module(**inputs).logits.argmax(-1) == batch["labels"]).float().mean(-1).tolist()}

    def score(self, predictions: dict[str, Any], split: Any, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Return `accuracy` over tokens."""
        return {"accuracy": np.asarray(predictions["right"], np.float64)}


@dataclass(frozen=True)
class Asking(Objective):
    """Binary cross-entropy over random answers to random questions about random images."""

    reduction: ClassVar[str] = "example"
    inputs: ClassVar[tuple[str, ...]] = ("input_ids", "attention_mask", "pixel_values")
    metric: ClassVar[str] = "accuracy"
    image_size: int = 384
    answers: int = 100

    def encode(self, split: Any, tokenizer: Any) -> Examples:
        """Draw the inputs of `ViltNetwork.forward`."""
        count, random = len(split), rng("asking", len(split))
        size = (count, 3, self.image_size, self.image_size)
        return Examples(
            {
                "input_ids": torch.from_numpy(random.integers(1, 30_000, (count, 40))),
                "attention_mask": torch.ones(count, 40, dtype=torch.int64),
                "pixel_values": torch.from_numpy(random.integers(0, 255, size, np.uint8)),
                "answer": functional.one_hot(
                    torch.from_numpy(random.integers(0, self.answers, count)), self.answers
                ).float(),
            }
        )

    def loss(self, outputs: Outputs, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return sums over answers and weights of 1."""
        each = functional.binary_cross_entropy_with_logits(outputs.logits, batch["answer"], reduction="none")
        return each.sum(-1) * batch["mask"], batch["mask"]

    def predict(self, module: nn.Module, batch: Batch) -> dict[str, Any]:
        """Return whether the most likely answer is the right one."""
        logits = module(**{name: batch[name] for name in self.inputs}).logits
        return {"right": (logits.argmax(-1) == batch["answer"].argmax(-1)).float().tolist()}

    def score(self, predictions: dict[str, Any], split: Any, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Return `accuracy`."""
        return {"accuracy": np.asarray(predictions["right"], np.float64)}


def experiment(
    name: str,
    data: Data,
    partition: Partitioner,
    model: Model,
    phase: Phase,
    clients_per_batch: int,
    privacy: Privacy | None = None,
) -> Experiment:
    """Return an experiment of one phase that is vectorized and not evaluated."""
    return Experiment(
        name=name,
        data=data,
        partition=partition,
        model=model,
        phases=(phase,),
        execution=Execution(clients_per_batch=clients_per_batch, mode="vectorized"),
        evaluate=Evaluate(every=0, limit=8, samples=0),
        privacy=privacy,
    )  # fmt: skip


def phase(objective: Objective, local: Local, clients_per_round: int, algorithm: Algorithm | None = None) -> Phase:
    """Return a phase with uniform weights, FedAvg by default."""
    return Phase(
        objective=objective,
        algorithm=algorithm or FedAvg(),
        local=local,
        rounds=1,
        clients_per_round=clients_per_round,
        weighting="uniform",
    )


def t5_lora(dropout: float) -> Experiment:
    """Return a T5 with boxes of words and LoRA, without page images; its six clients fit into one batch."""
    adapters = Lora(rank=6, alpha=16, dropout=dropout)
    model = VT5(size="base", vocab_size=32_128, dropout=dropout, precision="bf16", adapters=adapters)
    training = phase(Reading(), Local(ADAMW, learning_rate=1e-3, batch_size=10), 6)
    return experiment("t5_lora", Numbered(1800), Iid(clients=60), model, training, 8)


def vt5_full(name: str = "vt5_full", batch: int = 4) -> Experiment:
    """Return a VT5 that trains all parameters except those of the page reader, on two batches of each client."""
    model = VT5(size="base", vocab_size=32_128, precision="bf16")
    training = phase(Reading(page=True), Local(ADAMW, learning_rate=1e-4, batch_size=batch), 2)
    return experiment(name, Numbered(40 * batch), Iid(clients=20), model, training, 2)


def vilt(name: str, adapters: tuple[str, ...], algorithm: Algorithm) -> Experiment:
    """Return a ViLT with bottleneck adapters of the given names."""
    heads = {"answers": HeadSpec(classes=100)}
    model = Vilt(size="base", heads=heads, adapters=Bottleneck(names=adapters), precision="bf16")
    training = phase(Asking(), Local(ADAMW, learning_rate=1e-4, batch_size=8), 4, algorithm)
    return experiment(name, Numbered(640), Iid(clients=20), model, training, 4)


def cifar() -> Experiment:
    """Return the CIFAR10 protocol of pfl-research."""
    data = Prototypes(examples=50_000, classes=10, shape=(3, 32, 32))
    model = Cnn(activation="relu", pool="max", dropout=0.25)
    training = phase(ImageClassification(shape=(3, 32, 32)), _sgd(0.1), 50)
    return experiment("cifar", data, Iid(clients=1000), model, training, 64)


def femnist() -> Experiment:
    """Return a CNN on data of FEMNIST's size."""
    data = Prototypes(examples=3400 * 30, classes=62, shape=(1, 28, 28))
    model = Cnn(activation="relu", pool="max")
    return experiment(
        "femnist", data, Iid(clients=3400), model, phase(ImageClassification(), _sgd(0.1), 100), clients_per_batch=128
    )


def dp() -> Experiment:
    """Return the CNN of femnist with group-level differential privacy."""
    data = Prototypes(examples=100 * 50 * 30, classes=62, shape=(1, 28, 28))
    model = Cnn(activation="relu", pool="max")
    training = phase(ImageClassification(), _sgd(0.1), 2)
    privacy = Privacy(unit="group", clip=1.0, noise_multiplier=1.0)
    return experiment("dp", data, Grouped(clients=100), model, training, 2, privacy)


def million() -> Experiment:
    """Return an MLP over a million clients."""
    data = Prototypes(examples=2_000_000, classes=62, shape=(60,))
    training = phase(Classification(), _sgd(0.05), 1000)
    return experiment("million", data, Iid(clients=1_000_000), Mlp(hidden_sizes=(400,)), training, 256)


def _sgd(learning_rate: float) -> Local:
    return Local(LocalOptimizer("sgd"), learning_rate=learning_rate, batch_size=10)


WORKS: Mapping[str, Experiment] = {
    "cifar": cifar(),
    "femnist": femnist(),
    "t5_lora": t5_lora(dropout=0.0),
    "t5_lora_dropout": t5_lora(dropout=0.1),
    "vt5_full": vt5_full(),
    "vt5_full_16": vt5_full("vt5_full_16", 16),
    "vt5_full_32": vt5_full("vt5_full_32", 32),
    "vilt": vilt("vilt", ("shared",), FedAvg()),
    "feddat": vilt("feddat", ("shared", "client"), FedDat()),
    "dp": dp(),
    "million": million(),
}
