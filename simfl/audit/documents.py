"""Canaries that are documents: copies of pages that were not trained on, with a question whose answer is drawn.

A canary is a group of a client. If its coin includes it, it has one example, which is trained on, clipped and noised
like those of other groups; if not, it has none. The attacker knows the documents and the model that clients receive,
and scores an update by its inner product with the descent direction of a document's loss, of norm 1; and the final
model by how much the loss has fallen. Contributions of documents differ and overlap, so only the one-run bound applies.
"""

from __future__ import annotations

import string
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from simfl.audit.canaries import Canaries
from simfl.audit.tables import with_column
from simfl.data.base import TRAIN, Data, Dataset, Split
from simfl.data.io.tables import concatenate
from simfl.data.partition.manifest import Partition
from simfl.errors import ConfigError
from simfl.protocol import Batch, Forward, Weights
from simfl.run_context import RunContext
from simfl.seeds import rng, seed_for
from simfl.training.context import PhaseContext
from simfl.training.forward import model_inputs, run_forward, with_task_loss

DONORS = ("unseen", "test", "valid")  # splits whose pages are copied, the first with questions
LETTERS = 8  # of a drawn answer
ALPHABET = np.array(list(string.ascii_lowercase + string.digits))
QUESTION = "What is the code of this page?"


@dataclass(frozen=True)
class WithDocuments(Data):
    """A data set whose training split ends with crafted documents.

    Attributes:
        data: The data set.
        number: Number of documents.
        seed: Seed of the choice of pages and of the answers.
    """

    data: Data
    number: int = 0
    seed: int = 0

    def load(self, cache: Path) -> Dataset:
        """Load the data set and add the documents.

        Raises:
            ConfigError: The data have no questions about pages in a split that is not trained on.
        """
        dataset = self.data.load(cache)
        donors = next((dataset.splits[name] for name in DONORS if _has_pages(dataset.splits.get(name))), None)
        if donors is None or not _has_pages(dataset.splits[TRAIN]):
            raise ConfigError(f"--documents: needs questions about pages in train and one of {', '.join(DONORS)}")
        whole = concatenate([dataset.splits[TRAIN], self._crafted(donors)])
        return replace(dataset, splits={**dataset.splits, TRAIN: whole})

    def _crafted(self, donors: Split) -> Split:
        """Return the documents, one question each."""
        assert donors.documents is not None
        generator = rng(self.seed, "canary documents")
        rows = generator.integers(0, len(donors), self.number).tolist()
        answers = ["".join(one) for one in generator.choice(ALPHABET, (self.number, LETTERS))]
        examples = donors.examples.take(rows)
        documents = donors.documents.take(examples["document"].to_pylist())
        names = [f"canary {k}" for k in range(self.number)]
        changed: dict[str, list[Any]] = {
            "id": names,
            "document": list(range(self.number)),
            "question": [QUESTION] * self.number,
            "answers": [[answer] for answer in answers],
        }
        for name, values in changed.items():
            examples = with_column(examples, name, values)
        return Split(examples, with_column(documents, "id", names))


def _has_pages(split: Split | None) -> bool:
    if split is None or split.documents is None or not len(split):
        return False
    return {"id", "question", "answers"} <= set(split.examples.column_names)


@dataclass(frozen=True)
class DocumentCanaries(Canaries):
    """Crafted documents as canaries.

    Attributes:
        rows: Row of the training split of each document, int64 [m].
        context: The audited phase, on data with the documents.
        batches: One batch for each document.
        received: The trained tensors that clients receive in the current round.
    """

    rows: np.ndarray
    context: PhaseContext
    batches: list[Batch]
    received: Weights = field(default_factory=dict)

    @staticmethod
    def draw(partition: Partition, number: int, context: RunContext, seed: int) -> DocumentCanaries:
        """Draw owners and coins.

        Args:
            partition: The partition without canaries.
            number: Number of documents m, which are the last rows of the training split.
            context: The run, on data with the documents.
            seed: Seed of the coins.
        """
        owners, numbers = Canaries.places(partition, "group", number)
        included = rng(seed, "canaries").random(number) < 0.5
        rows = len(context.split(TRAIN)) - number + np.arange(number)
        phase = context.phase_context(0, len(partition))
        examples = context.examples(phase.phase.objective, TRAIN)
        batches = [examples.take(torch.tensor([row], device=context.device)) for row in rows.tolist()]
        return DocumentCanaries(owners, numbers, included, rows, phase, batches)

    @property
    def has_known_updates(self) -> bool:
        """Return whether the update of a canary is known before it is trained."""
        return False

    def groups(self, client: int) -> list[np.ndarray]:
        """Return the rows of each canary of a client, int64; none for those that their coin excludes."""
        return [self.rows[k : k + 1] if self.included[k] else self.rows[:0] for k in self.of(client).tolist()]

    def start(self, received: Weights) -> None:
        """Note the trained tensors that clients receive in a round."""
        self.received.update({name: tensor.detach() for name, tensor in received.items()})

    def scores(self, seen: Weights, which: np.ndarray | None = None) -> np.ndarray:
        """Return the inner product of an update with the descent direction of each document, or of some, [n]."""
        return np.array([self._score(seen, self.batches[k]) for k in self._some(which)], np.float64)

    def final_scores(self, first: Weights, last: Weights) -> np.ndarray:
        """Return how much the loss of each document has fallen, float64 [m]."""
        with torch.no_grad():
            losses = [
                [float(self._loss({**first, **weights}, batch)) for batch in self.batches] for weights in (first, last)
            ]
        found: np.ndarray = np.subtract(losses[0], losses[1])
        return found

    def _score(self, seen: Weights, batch: Batch) -> float:
        leaves = {name: tensor.clone().requires_grad_() for name, tensor in self.received.items()}
        found = torch.autograd.grad(self._loss(leaves, batch), list(leaves.values()), allow_unused=True)
        slopes = {name: slope for name, slope in zip(leaves, found, strict=True) if slope is not None}
        products = [float((seen[name].to(slope) * slope).sum(dtype=torch.float64)) for name, slope in slopes.items()]
        norms = [float((slope.double() ** 2).sum()) for slope in slopes.values()]
        return -sum(products) / max(sum(norms) ** 0.5, 1e-30)

    def _loss(self, weights: Weights, batch: Batch) -> torch.Tensor:
        context, key = self.context, torch.tensor(seed_for(self.context.seed, "audit"))
        outputs = run_forward(context, Forward(train=False), weights, model_inputs(context, batch), key)
        outputs = with_task_loss(context, outputs, batch)
        assert outputs.loss_sums is not None
        assert outputs.loss_weights is not None
        return outputs.loss_sums.sum() / outputs.loss_weights.sum().clamp_min(1e-12)


def with_documents(partition: Partition, canaries: DocumentCanaries) -> Partition:
    """Return a partition in which each document is a group, without examples if its coin excludes it."""
    groups = [canaries.groups(client) for client in range(len(partition))]
    names = [[f"canary {client}.{k}" for k in range(len(own))] for client, own in enumerate(groups)]
    return partition.with_groups(names, groups)
