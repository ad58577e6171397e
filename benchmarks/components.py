"""What the works need beside simfl's own shelves: client sizes, token sequences, a T5."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor, nn

from benchmarks.networks import T5Network
from benchmarks.result import first_step
from simfl.data.base import Data, Dataset, Split
from simfl.data.io.arrow_store import content_sha256, load_or_build
from simfl.data.partition.base import Partitioner
from simfl.data.partition.manifest import Partition
from simfl.models.adapters import Adapter
from simfl.models.base import Model, seeded, set_trainable
from simfl.models.dropout import install_keyed_dropout
from simfl.objectives.base import Objective
from simfl.objectives.classification import Classification
from simfl.protocol import Batch, Examples, Outputs, Task
from simfl.seeds import rng


@dataclass(frozen=True)
class LogNormal(Partitioner):
    """Examples dealt at random; sizes are log-normal, at least 1, and together all examples."""

    sigma: float = 0.5  # of the logarithm of the sizes; 0: all alike

    def split(self, split: Split, seed: int) -> Partition:
        count, random = len(split), rng(seed, "partition", "lognormal")
        clients = self.num_clients(count, f"{count} examples")
        shares = random.lognormal(sigma=self.sigma, size=clients)
        ends = np.floor(np.cumsum(shares / shares.sum()) * (count - clients)).astype(np.int64)
        ends[-1] = count - clients
        owner = np.empty(count, np.int64)
        owner[random.permutation(count)] = np.searchsorted(ends + np.arange(1, clients + 1), np.arange(count), "right")
        return Partition.from_owners(owner, clients)


@dataclass(frozen=True)
class Pictures(Classification):
    """Classification of features that are laid out as pictures."""

    shape: tuple[int, ...] = (1, 28, 28)

    def encode(self, split: Any, tokenizer: Any) -> Examples:
        """Rows `x` [N, *shape] and `label` [N]."""
        rows = super().encode(split, tokenizer).rows
        return Examples({**rows, "x": rows["x"].reshape(-1, *self.shape)})

    def loss(self, outputs: Outputs, batch: Batch) -> tuple[Tensor, Tensor]:
        """As in classification; notes when the first local step is taken."""
        first_step()
        return super().loss(outputs, batch)


@dataclass(frozen=True)
class Sequences(Data):
    """Random tokens, and their first ones in another order as the answer."""

    examples: int = 640
    vocabulary: int = 16_384
    length: int = 128
    answer: int = 32

    def load(self, cache: Path) -> Dataset:
        return load_or_build(cache, "sequences", 1, self, (), self._build)

    def _build(self) -> Dataset:
        splits = {name: self._split(name, n) for name, n in (("train", self.examples), ("valid", 10))}
        return Dataset("sequences", splits, content_sha256(splits), {"num_classes": self.vocabulary})

    def _split(self, name: str, count: int) -> Split:
        tokens = rng("sequences", name).integers(2, self.vocabulary, (count, self.length), np.int32)
        answers = tokens[:, : self.answer][:, ::-1].reshape(-1)
        columns = {
            "tokens": pa.FixedSizeListArray.from_arrays(pa.array(tokens.reshape(-1)), self.length),
            "answer": pa.FixedSizeListArray.from_arrays(pa.array(answers), self.answer),
        }
        return Split(pa.table(columns))


@dataclass(frozen=True)
class SequenceToSequence(Objective):
    """Cross-entropy of the answer's tokens."""

    reduction: ClassVar[str] = "token"
    inputs: ClassVar[tuple[str, ...]] = ("tokens", "answer")
    metric: ClassVar[str] = "accuracy"

    def encode(self, split: Any, tokenizer: Any) -> Examples:
        """Rows `tokens` [N, L] and `answer` [N, T], int64."""
        columns = {name: split.examples[name].combine_chunks() for name in ("tokens", "answer")}
        arrays = {name: np.from_dlpack(c.flatten()).reshape(len(split), -1) for name, c in columns.items()}
        return Examples({name: torch.from_numpy(a.astype(np.int64)) for name, a in arrays.items()})

    def loss(self, outputs: Outputs, batch: Batch) -> tuple[Tensor, Tensor]:
        """Sums over tokens and their numbers; notes when the first local step is taken."""
        first_step()
        chances = outputs.logits.log_softmax(-1)
        picked = chances.gather(-1, batch["answer"][..., None]).squeeze(-1)
        return -picked.sum(-1) * batch["mask"], batch["mask"] * picked.shape[-1]

    def predict(self, module: nn.Module, batch: Batch) -> dict[str, Any]:
        """Whether each token is right, given those before it."""
        best = module(batch["tokens"], batch["answer"]).argmax(-1)
        return {"right": (best == batch["answer"]).float().mean(-1).tolist()}

    def score(self, predictions: dict[str, Any], split: Any, rows: np.ndarray) -> dict[str, np.ndarray]:
        """`accuracy` over tokens."""
        return {"accuracy": np.asarray(predictions["right"], np.float64)}


@dataclass(frozen=True)
class T5(Model):
    """T5 of transformers, 15 M parameters."""

    adapters: Adapter | None = None

    def build(self, task: Task) -> nn.Module:
        assert task.num_classes is not None
        with seeded(task.seed):
            module = T5Network(task.num_classes)
            if self.adapters is not None:
                self.adapters.attach(module)
        return set_trainable(self, install_keyed_dropout(module).eval())

    def trainable_params(self, module: nn.Module) -> tuple[str, ...]:
        return ("*",) if self.adapters is None else self.adapters.own_params()
