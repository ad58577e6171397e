"""Components of the works that simfl does not have: log-normal client sizes, token sequences, a T5."""

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
    """Random partition of all examples into clients of log-normal size, at least 1."""

    sigma: float = 0.5  # standard deviation of the logarithm of the sizes; 0: equal sizes

    def split(self, split: Split, seed: int) -> Partition:
        """Draw sizes, then assign shuffled examples."""
        count, random = len(split), rng(seed, "partition", "lognormal")
        clients = self.num_clients(count, f"{count} examples")
        shares = random.lognormal(sigma=self.sigma, size=clients)
        ends = np.floor(np.cumsum(shares / shares.sum()) * (count - clients)).astype(np.int64)
        ends[-1] = count - clients
        owner = np.empty(count, np.int64)
        owner[random.permutation(count)] = np.searchsorted(ends + np.arange(1, clients + 1), np.arange(count), "right")
        return Partition.from_owners(owner, clients)


@dataclass(frozen=True)
class ImageClassification(Classification):
    """Classification of features that are reshaped to images."""

    shape: tuple[int, ...] = (1, 28, 28)

    def encode(self, split: Any, tokenizer: Any) -> Examples:
        """Return rows `x` [N, *shape] and `label` [N]."""
        rows = super().encode(split, tokenizer).rows
        return Examples({**rows, "x": rows["x"].reshape(-1, *self.shape)})


@dataclass(frozen=True)
class TimedImageClassification(ImageClassification):
    """Image classification that records the first local step."""

    def loss(self, outputs: Outputs, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the loss of classification; record the first local step."""
        first_step()
        return super().loss(outputs, batch)


@dataclass(frozen=True)
class Sequences(Data):
    """Random tokens whose answer is their first tokens in reverse."""

    examples: int = 640
    vocabulary: int = 16_384
    length: int = 128
    answer: int = 32

    def load(self, cache: Path) -> Dataset:
        """Load from the cache, or draw."""
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
    """Cross-entropy of the tokens of the answer."""

    reduction: ClassVar[str] = "token"
    inputs: ClassVar[tuple[str, ...]] = ("tokens", "answer")
    metric: ClassVar[str] = "accuracy"

    def encode(self, split: Any, tokenizer: Any) -> Examples:
        """Return rows `tokens` [N, L] and `answer` [N, T], int64."""
        columns = {name: split.examples[name].combine_chunks() for name in ("tokens", "answer")}
        arrays = {name: np.from_dlpack(c.flatten()).reshape(len(split), -1) for name, c in columns.items()}
        return Examples({name: torch.from_numpy(a.astype(np.int64)) for name, a in arrays.items()})

    def loss(self, outputs: Outputs, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return sums over tokens and token counts; record the first local step."""
        first_step()
        log_probs = outputs.logits.log_softmax(-1)
        picked = log_probs.gather(-1, batch["answer"][..., None]).squeeze(-1)
        return -picked.sum(-1) * batch["mask"], batch["mask"] * picked.shape[-1]

    def predict(self, module: nn.Module, batch: Batch) -> dict[str, Any]:
        """Return the share of tokens that are right under teacher forcing."""
        best = module(batch["tokens"], batch["answer"]).argmax(-1)
        return {"right": (best == batch["answer"]).float().mean(-1).tolist()}

    def score(self, predictions: dict[str, Any], split: Any, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Return `accuracy` over tokens."""
        return {"accuracy": np.asarray(predictions["right"], np.float64)}


@dataclass(frozen=True)
class T5(Model):
    """The T5 of transformers with 15 M parameters."""

    adapters: Adapter | None = None

    def build(self, task: Task) -> nn.Module:
        """Build the network, with adapters and keyed dropout."""
        assert task.num_classes is not None
        with seeded(task.seed):
            module = T5Network(task.num_classes)
            if self.adapters is not None:
                self.adapters.attach(module)
        return set_trainable(self, install_keyed_dropout(module).eval())

    def trainable_params(self, module: nn.Module) -> tuple[str, ...]:
        """Return all parameters, or those of the adapters."""
        return ("*",) if self.adapters is None else self.adapters.own_params()
