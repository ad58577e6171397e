"""The nouns: what crosses the border between server, client and engine.

    Weights   named tensors                              Parts, State   named groups of named tensors
    Forward   one pass of the model, declared as data    MicroStep      one optimizer step of a local step
    Outputs   what a pass returns                        Loss           what an algorithm makes of the outputs
    ClientUpdate     a client at work, as numbers               AggregatedUpdates, Server  what the server sees

A tensor function given `trained`, `received`, `state` and `update` never knows whether it serves one client or, under
`torch.func.vmap`, a whole cohort.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import NamedTuple

import torch
from torch import Tensor

from simfl.weights import State, Weights

Parts = dict[str, Weights]
Batch = dict[str, Tensor]

EXTRA = "extra"  # trained tensors beside the model's own are named "extra/<group>/<name>"


@dataclass(frozen=True)
class Forward:
    """One pass of the model over the batch.

    `sources` maps globs of tensor names to where they are read: `trained`, `received`, `state:<key>` or
    `extra:<group>`; the first match holds, and a source that lacks a tensor falls back to the trained one, detached.
    `branch` selects the path through adapters that have several; `train` switches dropout; `grad` keeps the graph;
    `mentor` runs the second network, if the experiment has one (every source must then be an `extra:<group>`).
    """

    sources: tuple[tuple[str, str], ...] = (("*", "trained"),)
    branch: str = ""
    train: bool = True
    grad: bool = True
    mentor: bool = False


@dataclass(frozen=True)
class MicroStep:
    """One optimizer step: run these passes, differentiate this loss, step these tensors (globs) but spare those.

    With `steps` false nothing moves: the gradient is there for `Algorithm.observe` to see.
    """

    runs: tuple[str, ...]
    loss: Callable[..., Loss]
    trains: tuple[str, ...] = ("*",)
    spares: tuple[str, ...] = ()
    steps: bool = True


@dataclass(frozen=True)
class Outputs:
    """What a pass returns. `sums` and `weights` (both [B]) are the objective's task loss, filled in by the engine.

    `mask` [B, T] is 1 where a position of `logits` [B, T, V] counts; None for `logits` [B, V]. `targets`, of shape
    [B] or [B, T], are the right classes or pieces, where the objective has such; filled in by the engine too.
    """

    logits: Tensor
    features: Tensor | None = None
    hidden: Tensor | None = None
    mask: Tensor | None = None
    sums: Tensor | None = None
    weights: Tensor | None = None
    targets: Tensor | None = None

    def tensors(self) -> dict[str, Tensor]:
        """The fields that are present, by name."""
        return {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) is not None}

    def need(self, field: str) -> Tensor:
        """A field that the algorithm cannot do without."""
        tensor: Tensor | None = getattr(self, field)
        assert tensor is not None, f"the model gives no {field}"
        return tensor

    def detach(self) -> Outputs:
        """The same values without their graph."""
        return Outputs(**{name: tensor.detach() for name, tensor in self.tensors().items()})


@dataclass(frozen=True)
class ModelFacts:
    """What an algorithm may know of the networks before a update.

    `sample` and `mentor_sample`: what model and second network give for one example, if the algorithm needs features.
    `mentor`: where the second network starts, by trained tensor. Without a second network it is a copy of the model.
    """

    sample: Outputs | None
    mentor: Weights
    mentor_sample: Outputs | None = None


class ClientUpdate(NamedTuple):
    """A client at work, as scalar tensors, so that a batched or captured step can read them."""

    client: Tensor
    key: Tensor  # random bits of this update, int64
    round: Tensor
    step: Tensor  # local steps taken so far
    steps: Tensor  # local steps in all of this update
    examples: Tensor
    weight: Tensor  # the client's weight in a mean, 1 on average over all clients
    num_clients: Tensor  # K, clients in all
    num_sampled: Tensor  # clients in this round
    learning_rate: Tensor  # eta, before any schedule
    length: Tensor  # how far its local steps go in all along a constant gradient of 1; with plain SGD the sum of rates


@dataclass(frozen=True)
class Loss:
    """The loss of one client's batch: a task, and what the algorithm adds.

    `sums`, `weights`: the task's per-example sums and weights ([B]; their quotient of totals is the reported loss);
    `examples`: further per-example terms [B], averaged over real examples; `batch` and `client`: scalar terms.
    """

    sums: Tensor
    weights: Tensor
    examples: Tensor | None = None
    batch: Tensor | None = None
    client: Tensor | None = None

    @staticmethod
    def of(
        outputs: Outputs, examples: Tensor | None = None, batch: Tensor | None = None, client: Tensor | None = None
    ) -> Loss:
        """The task loss of a pass, and further terms."""
        return Loss(outputs.need("sums"), outputs.need("weights"), examples, batch, client)

    def parts(self) -> tuple[Tensor, Tensor]:
        """Sum and weight of the task loss over the batch."""
        return self.sums.sum(), self.weights.sum()

    def task(self) -> Tensor:
        """Mean task loss; 0 for a batch without weight."""
        return self.sums.sum() / self.weights.sum().clamp_min(1e-12)

    def total(self, mask: Tensor) -> Tensor:
        """What is differentiated; `mask` [B] is 1 for real examples."""
        total = self.task()
        if self.examples is not None:
            total = total + (self.examples * mask).sum() / mask.sum().clamp_min(1.0)
        for term in (self.batch, self.client):
            if term is not None:
                total = total + term
        return total


@dataclass(frozen=True)
class AggregatedUpdates:
    """What came back from a round: means of the summed parts, every upload of the gathered ones in canonical order."""

    parts: Parts
    gathered: dict[str, list[Weights]]
    num_clients: int
    num_sampled: int
    weight: float  # sum of the weights


@dataclass(frozen=True)
class Server:
    """All that the server knows between two rounds of a phase."""

    weights: Weights  # the communicated tensors of the global model
    state: State = field(default_factory=dict)  # the algorithm's
    optimizer: State = field(default_factory=dict)  # the server optimizer's


@dataclass(frozen=True)
class Task:
    """What a model must know of its data to be built."""

    seed: int
    num_classes: int | None = None
    shape: tuple[int, ...] | None = None
    extra: Mapping[str, object] = field(default_factory=dict)


class Examples:
    """Encoded examples of static shape: one row each, and tables shared by several rows (such as page images)."""

    def __init__(self, rows: Weights, shared: dict[str, tuple[str, Tensor]] | None = None) -> None:
        """`rows`: tensors [N, ...]; `shared`: batch key -> (row key holding int64 indices, table [M, ...])."""
        self.rows, self.shared = rows, shared or {}

    def __len__(self) -> int:
        return len(next(iter(self.rows.values())))

    def take(self, index: Tensor) -> Batch:
        """The batch at int64 `index` (any shape; -1 is padding), with `mask` (float, 1 for real examples)."""
        safe = index.clamp_min(0)
        flat = safe.dim() == 1 and not safe.is_cuda
        batch = {name: v.index_select(0, safe) if flat else v[safe] for name, v in self.rows.items()}
        for name, (key, table) in self.shared.items():
            batch[name] = table[batch[key]]
        batch["mask"] = (index >= 0).to(torch.float32)
        return batch

    def to(self, device: torch.device) -> Examples:
        """The same examples, resident on a device."""
        shared = {name: (key, table.to(device)) for name, (key, table) in self.shared.items()}
        return Examples({name: values.to(device) for name, values in self.rows.items()}, shared)
