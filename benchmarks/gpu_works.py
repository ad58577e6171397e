"""What `benchmarks.gpu` times: works of published size on data drawn from a seed, from which nothing is learned.

cifar     CNN, 1.6 M, 32×32         K = 1,000    50 a round  50 images each  batch 10  SGD, dropout (pfl-research)
femnist   CNN, 1.2 M, 28×28, 62     K = 3,400   100 a round  30 images each  batch 10  SGD
t5_lora   T5-base, 512 tokens       K = 60        6 a round  30 texts each   batch 10  LoRA r = 6 on q, v, AdamW
vt5_full  VT5-base, 512 tokens      K = 20        2 a round  8 pages each    batch 4   all but the page reader
vilt      ViLT-base, 384×384        K = 20        4 a round  32 pairs each   batch 8   bottleneck adapters, AdamW
feddat    ViLT-base, 384×384        K = 20        4 a round  32 pairs each   batch 8   FedDAT's dual adapters, AdamW
dp        CNN as femnist            K = 100       2 a round  50 units of 30  batch 10  units clipped, noise
million   MLP 60-400-62             K = 10^6  1,000 a round  2 each          batch 10  SGD
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor, nn
from torch.nn import functional

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
    """Examples that are nothing but numbers; the objective draws from them what a model reads."""

    examples: int = 1000
    classes: int = 100

    def load(self, cache: Path) -> Dataset:
        return load_or_build(cache, "numbered", 1, self, (), self._build)

    def _build(self) -> Dataset:
        splits = {
            name: Split(pa.table({"number": np.arange(count)}))
            for name, count in (("train", self.examples), ("valid", 8))
        }
        return Dataset("numbered", splits, content_sha256(splits), {"num_classes": self.classes})


@dataclass(frozen=True)
class Grouped(Partitioner):
    """Examples in file order, every client's in groups of one size, as units of privacy."""

    groups: int = 50

    def split(self, split: Split, seed: int) -> Partition:
        clients = self.num_clients(len(split), f"{len(split)} examples")
        owner = np.arange(len(split)) * clients // len(split)
        group = np.arange(len(split)) * clients * self.groups // len(split)
        names = pa.array([f"unit {k}" for k in range(clients * self.groups)])
        return Partition.from_owners(owner, clients, (group, names))


@dataclass(frozen=True)
class Reading(Objective):
    """Cross-entropy of random answers to random texts, with or without a page."""

    reduction: ClassVar[str] = "token"
    inputs: ClassVar[tuple[str, ...]] = ("input_ids", "boxes", "attention_mask", "labels", "pixel_values")
    metric: ClassVar[str] = "accuracy"
    length: int = 512
    answer: int = 16
    page: bool = False

    def encode(self, split: Any, tokenizer: Any) -> Examples:
        """Rows as `VT5Network.forward` takes them."""
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
        """Sums over pieces and their numbers."""
        picked = outputs.logits.log_softmax(-1).gather(-1, batch["labels"][..., None]).squeeze(-1)
        return -picked.sum(-1) * batch["mask"], batch["mask"] * picked.shape[-1]

    def predict(self, module: nn.Module, batch: Batch) -> dict[str, Any]:
        """Whether each piece is right, given those before it."""
        given = {name: batch[name] for name in self.inputs if name in batch}
        return {"right": (module(**given).logits.argmax(-1) == batch["labels"]).float().mean(-1).tolist()}

    def score(self, predictions: dict[str, Any], split: Any, rows: np.ndarray) -> dict[str, np.ndarray]:
        """`accuracy` over pieces."""
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
        """Rows as `ViltNetwork.forward` takes them."""
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
        """Summed over answers."""
        each = functional.binary_cross_entropy_with_logits(outputs.logits, batch["answer"], reduction="none")
        return each.sum(-1) * batch["mask"], batch["mask"]

    def predict(self, module: nn.Module, batch: Batch) -> dict[str, Any]:
        """Whether the best answer is the right one."""
        logits = module(**{name: batch[name] for name in self.inputs}).logits
        return {"right": (logits.argmax(-1) == batch["answer"].argmax(-1)).float().tolist()}

    def score(self, predictions: dict[str, Any], split: Any, rows: np.ndarray) -> dict[str, np.ndarray]:
        """`accuracy`."""
        return {"accuracy": np.asarray(predictions["right"], np.float64)}


@dataclass(frozen=True)
class Pictures(Classification):
    """Classification of features that are laid out as pictures."""

    shape: tuple[int, ...] = (1, 28, 28)

    def encode(self, split: Any, tokenizer: Any) -> Examples:
        """Rows `x` [N, *shape] and `label` [N]."""
        rows = super().encode(split, tokenizer).rows
        return Examples({**rows, "x": rows["x"].reshape(-1, *self.shape)})


def _experiment(
    name: str,
    data: Data,
    clients: int,
    sampled: int,
    model: Any,
    objective: Objective,
    local: Local,
    clients_per_batch: int,
    algorithm: Algorithm | None = None,
    partition: Partitioner | None = None,
    **more: Any,
) -> Experiment:
    phase = Phase(objective=objective, local=local, rounds=1, clients_per_round=sampled, weighting="uniform")
    return Experiment(
        name=name,
        data=data,
        partition=partition or Iid(clients=clients),
        model=model,
        phases=(replace(phase, algorithm=algorithm or FedAvg()),),
        execution=Execution(clients_per_batch=clients_per_batch, mode="vectorized"),
        evaluate=Evaluate(every=0, limit=8, samples=0),
        **more,
    )


def t5_lora(dropout: float) -> Experiment:
    """Its six clients fill one program; no page, so that it is a T5 with the places of words."""
    model = VT5(
        size="base", vocab_size=32_128, dropout=dropout, precision="bf16",
        adapters=Lora(rank=6, alpha=16, dropout=dropout),
    )  # fmt: skip
    local = Local(ADAMW, learning_rate=1e-3, batch_size=10)
    return _experiment("t5_lora", Numbered(1800), 60, 6, model, Reading(), local, 8)


def _vilt(name: str, names: tuple[str, ...], algorithm: Algorithm) -> Experiment:
    model = Vilt(
        size="base", heads={"answers": HeadSpec(classes=100)}, adapters=Bottleneck(names=names), precision="bf16"
    )
    local = Local(ADAMW, learning_rate=1e-4, batch_size=8)
    return _experiment(name, Numbered(640), 20, 4, model, Asking(), local, 4, algorithm)


def _sgd(rate: float) -> Local:
    return Local(LocalOptimizer("sgd"), learning_rate=rate, batch_size=10)


FEMNIST = Prototypes(examples=3400 * 30, classes=62, shape=(1, 28, 28))
WORKS: Mapping[str, Experiment] = {
    "cifar": _experiment(
        "cifar", Prototypes(examples=50_000, classes=10, shape=(3, 32, 32)), 1000, 50,
        Cnn(activation="relu", pool="max", dropout=0.25), Pictures(shape=(3, 32, 32)), _sgd(0.1), 64,
    ),
    "femnist": _experiment(
        "femnist", FEMNIST, 3400, 100, Cnn(activation="relu", pool="max"), Pictures(), _sgd(0.1), 128
    ),
    "t5_lora": t5_lora(0.0),
    "t5_lora_dropout": t5_lora(0.1),
    "vt5_full": _experiment(
        "vt5_full", Numbered(160), 20, 2,
        VT5(size="base", vocab_size=32_128, precision="bf16"), Reading(page=True),
        Local(ADAMW, learning_rate=1e-4, batch_size=4), 2,
    ),
    "vilt": _vilt("vilt", ("shared",), FedAvg()),
    "feddat": _vilt("feddat", ("shared", "client"), FedDat()),
    "dp": _experiment(
        "dp", Prototypes(examples=100 * 50 * 30, classes=62, shape=(1, 28, 28)), 100, 2,
        Cnn(activation="relu", pool="max"), Pictures(), _sgd(0.1), 2, None, Grouped(clients=100),
        privacy=Privacy(unit="group", clip=1.0, noise_multiplier=1.0),
    ),
    "million": _experiment(
        "million", Prototypes(examples=2_000_000, classes=62, shape=(60,)), 1_000_000, 1000, Mlp(hidden_sizes=(400,)),
        Classification(), _sgd(0.05), 256,
    ),
}  # fmt: skip
