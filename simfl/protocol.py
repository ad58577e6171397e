"""The data types that cross the borders between server, clients and engine.

    Weights            tensors by name                         Parts, State  groups of named tensors, by group name
    Forward            one forward pass of a model             MicroStep     one optimizer step within a local step
    Outputs            results of a forward pass               Loss          the loss of one client's batch
    ClientUpdate       facts of one client update              ModelInfo     facts about the networks
    AggregatedUpdates  the uploads of one round, aggregated    Server        the server's state between two rounds
    Task               facts about the data, for a model       Examples      encoded examples of one split

Terms. In a *round* the server sends a *download* to each sampled client. A *client update* is the local training of one
client in one round: a number of *local steps*, each on one *batch*, after which the client sends an *upload*. A *delta*
is always trained minus received weights. Downloads and uploads are `Parts`: `parts["weights"]["layer.bias"]` is a
tensor. Shapes in docstrings: B examples of a batch, T positions of a sequence, V classes or vocabulary entries.

Functions of tensors receive `trained`, `received`, `state` and `update` of *one* client. The engine calls them directly
or, to train several clients at once, under `torch.func.vmap`; they must not depend on which of the two it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import NamedTuple

import torch
from torch import Tensor

from simfl.low_rank import LowRankPair
from simfl.weights import State, Weights

Parts = dict[str, Weights]
Batch = dict[str, Tensor]

EXTRA = "extra"  # tensors of `Algorithm.extra_params` are named "extra/<group>/<name>" among the trained tensors
BASE = "base"  # part of a download: frozen tensors that the algorithm changes, see `Algorithm.base_change`


@dataclass(frozen=True)
class Forward:
    """One forward pass of a model over the batch.

    Attributes:
        sources: Pairs of a glob of tensor names and the source of these tensors: `trained`, `received`, `state:<key>`
            or `extra:<group>`. The first matching glob wins. A tensor that the source lacks is the trained one,
            detached.
        branch: The path through adapters that have several; empty: the default path.
        train: Whether the model runs in training mode (dropout).
        grad: Whether the pass keeps its graph for differentiation.
        mentor: Whether the experiment's second network (`mentor:`) runs in place of the model, if there is one. Every
            source must then be an `extra:<group>`.
    """

    sources: tuple[tuple[str, str], ...] = (("*", "trained"),)
    branch: str = ""
    train: bool = True
    grad: bool = True
    mentor: bool = False

    @property
    def model(self) -> str:
        """Name of the model that the pass runs, such as `trained`, `received` or `extra:personal`.

        Passes with equal sources and branch run the same model. Each model has its own running statistics; see
        `simfl.training.model_states`.
        """
        (_, first), *others = self.sources
        name = first if not others else ",".join(f"{glob} {source}" for glob, source in self.sources)
        return f"{name}@{self.branch}".replace("/", "|") if self.branch else name.replace("/", "|")


@dataclass(frozen=True)
class MicroStep:
    """One optimizer step: run the passes `forwards`, differentiate `loss`, step the tensors matched by globs.

    Attributes:
        forwards: Names of the passes, in order.
        loss: The loss to differentiate, called as `Algorithm.loss`.
        trains: Globs of the tensors to differentiate and step.
        excludes: Globs of tensors excluded from `trains`.
        steps: Whether the optimizer steps. If false, only the gradient is computed, for `Algorithm.after_step` or for
            `at` of a later micro-step.
        at: Computes the weights at which the passes run, by name, as a tensor function of one client: `at(trained,
            gradients, state, update)`. `trained` are the current weights; `gradients` are the unclipped gradients of
            the earlier micro-steps of this local step, in order. Tensors that it does not return keep their current
            values. The gradient is taken at these weights, the loss sees them as `trained`, and the optimizer applies
            the gradient to the current weights. None: the passes run at the current weights.
        active: Returns a scalar tensor, 0 or 1, from the client update: whether the optimizer steps in this local
            step. If 0, the tensors neither move nor decay, and the optimizer state does not advance; passes and
            gradient are computed all the same. None: it always steps.
    """

    forwards: tuple[str, ...]
    loss: Callable[..., Loss]
    trains: tuple[str, ...] = ("*",)
    excludes: tuple[str, ...] = ()
    steps: bool = True
    at: Callable[[Weights, tuple[Weights, ...], State, ClientUpdate], Weights] | None = None
    active: Callable[[ClientUpdate], Tensor] | None = None


@dataclass(frozen=True)
class Outputs:
    """Results of one forward pass.

    A model sets `logits` and, if it has them, `features`, `hidden` and `mask`. The engine adds `loss_sums`,
    `loss_weights` and `targets`, which the objective computes from the batch.

    Attributes:
        logits: [B, V], or [B, T, V] for sequences.
        features: One representation per example, [B, ...].
        hidden: Hidden states of a sequence model, [B, T, d].
        mask: [B, T], 1 for positions of `logits` that count and 0 for padding; None for `logits` of shape [B, V].
        loss_sums: Sum of the task loss of each example, [B].
        loss_weights: Weight of each example's loss, [B]. The mean task loss is sum(loss_sums) / sum(loss_weights).
        targets: Correct classes [B] or tokens [B, T], if the objective has them; negative: none.
        token_losses: Loss of each token, [B, T], where the objective computes no logits; these are then NaN.
    """

    logits: Tensor
    features: Tensor | None = None
    hidden: Tensor | None = None
    mask: Tensor | None = None
    loss_sums: Tensor | None = None
    loss_weights: Tensor | None = None
    targets: Tensor | None = None
    token_losses: Tensor | None = None

    def tensors(self) -> dict[str, Tensor]:
        """Return the fields that are set, by name."""
        return {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) is not None}

    def require(self, field: str) -> Tensor:
        """Return a field that the algorithm cannot do without.

        Declare `needs_features` or `needs_targets` on the algorithm, so that an experiment without them is refused
        before it runs.
        """
        tensor: Tensor | None = getattr(self, field)
        assert tensor is not None, f"the model returns no {field}"
        return tensor

    def detach(self) -> Outputs:
        """Return the same values without their graph."""
        return Outputs(**{name: tensor.detach() for name, tensor in self.tensors().items()})


@dataclass(frozen=True)
class ModelInfo:
    """Facts about the networks, for `Algorithm.extra_params`.

    Attributes:
        outputs: Outputs of the model for one example (B = 1), if the algorithm has `needs_features`; else None.
        mentor_weights: Initial tensors of the second network. Without a `mentor:` in the experiment, the second network
            is a copy of the model, and these are `initial_weights`.
        mentor_outputs: Outputs of the second network for one example, like `outputs`.
        initial_weights: Trained tensors of the model at the beginning of the phase, in whichever round the client is
            sampled first, with the client's personal parameters.
        has_own_mentor: Whether the experiment has a `mentor:`.
    """

    outputs: Outputs | None
    mentor_weights: Weights
    mentor_outputs: Outputs | None = None
    initial_weights: Weights = field(default_factory=dict)
    has_own_mentor: bool = False


class ClientUpdate(NamedTuple):
    """The facts of one client update, as scalar tensors, so that vectorized and compiled steps can read them."""

    client: Tensor  # number of the client, from 0, int64
    key: Tensor  # key of this update's random draws, int64; see `simfl.keyed_random.step_uniform`
    round: Tensor  # round of the phase, from 0, int64
    step: Tensor  # local steps taken so far, int64
    num_steps: Tensor  # local steps of the whole update
    num_examples: Tensor  # examples of the client
    weight: Tensor  # weight of the client in a weighted mean, scaled to 1 on average over all clients
    num_clients: Tensor  # K, all clients
    num_sampled: Tensor  # clients sampled in this round
    learning_rate: Tensor  # eta, before the schedule
    total_rate: Tensor  # distance that the local steps cover along a constant gradient of 1: for SGD the sum of rates
    rank: Tensor  # rank of the client's low-rank adapters, int64; larger than any adapter where all have the same


@dataclass(frozen=True)
class Loss:
    """The loss of one client's batch: the task loss and further terms of the algorithm.

    Attributes:
        sums: Sum of the task loss of each example, [B].
        weights: Weight of each example, [B]. The reported loss is sum(sums) / sum(weights).
        example_terms: Further loss of each example, [B], averaged over the real examples of the batch.
        batch_term: Scalar computed from all examples of the batch. Requires `Algorithm.needs_whole_batch`.
        client_term: Scalar that depends on the client's tensors alone, such as a proximal term.
    """

    sums: Tensor
    weights: Tensor
    example_terms: Tensor | None = None
    batch_term: Tensor | None = None
    client_term: Tensor | None = None

    @staticmethod
    def from_outputs(
        outputs: Outputs,
        example_terms: Tensor | None = None,
        batch_term: Tensor | None = None,
        client_term: Tensor | None = None,
    ) -> Loss:
        """Return the task loss of a pass, with further terms."""
        sums, weights = outputs.require("loss_sums"), outputs.require("loss_weights")
        return Loss(sums, weights, example_terms, batch_term, client_term)

    def task_totals(self) -> tuple[Tensor, Tensor]:
        """Return the sum and the weight of the task loss over the batch, two scalars."""
        return self.sums.sum(), self.weights.sum()

    def task_mean(self) -> Tensor:
        """Return the mean task loss, a scalar; 0 for a batch without weight."""
        return self.sums.sum() / self.weights.sum().clamp_min(1e-12)

    def total(self, mask: Tensor) -> Tensor:
        """Return the scalar to differentiate: the mean task loss plus all terms.

        `mask` [B] is 1 for real examples and 0 for padding.
        """
        total = self.task_mean()
        if self.example_terms is not None:
            total = total + (self.example_terms * mask).sum() / mask.sum().clamp_min(1.0)
        for term in (self.batch_term, self.client_term):
            if term is not None:
                total = total + term
        return total


@dataclass(frozen=True)
class AggregatedUpdates:
    """The decoded uploads of one round, aggregated part by part as `Algorithm.reduce` declares.

    Attributes:
        means: Mean over the clients of each part declared "weighting" or "clients".
        gathered: All uploads of each part declared "gather", in ascending order of clients.
        num_clients: K, all clients.
        num_sampled: Clients of this round.
        total_weight: Sum of the weights of this round's clients.
        products: Weighted mean of the clients' products B A of each low-rank pair, float64 [rows, columns], by the name
            of its layer; empty unless `Algorithm.products` asks for them.
        ranks: Rank of the adapters of each client whose upload arrived.
    """

    means: Parts
    gathered: dict[str, list[Weights]]
    num_clients: int
    num_sampled: int
    total_weight: float
    products: Weights = field(default_factory=dict)
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True)
class Server:
    """The server's state between two rounds of a phase."""

    weights: Weights  # the communicated tensors of the global model
    state: State = field(default_factory=dict)  # state of the algorithm
    optimizer: State = field(default_factory=dict)  # state of the server optimizer
    base: Weights = field(default_factory=dict)  # frozen tensors that the algorithm changes, float32
    pairs: tuple[LowRankPair, ...] = ()  # low-rank factors among the trained tensors, where the algorithm uses them


@dataclass(frozen=True)
class Task:
    """Facts about the data that a model needs to be built.

    Attributes:
        seed: Seed of the initial weights.
        num_classes: Number of classes, where the data have classes.
        shape: Shape of one input, such as (3, 32, 32), where all inputs have one shape.
        extra: Further facts that a reader publishes.
    """

    seed: int
    num_classes: int | None = None
    shape: tuple[int, ...] | None = None
    extra: Mapping[str, object] = field(default_factory=dict)


class Examples:
    """Encoded examples as tensors of static shape: one row per example, and tables that several rows share."""

    def __init__(
        self, rows: Weights, shared: dict[str, tuple[str, Tensor]] | None = None, notes: tuple[str, ...] = ()
    ) -> None:
        """Store the tensors.

        Args:
            rows: Tensors [N, ...] by batch key.
            shared: Tables such as page images: batch key -> (key of the rows' int64 indices, table [M, ...]).
            notes: Messages for the user about what was left out, such as words beyond a limit; reported once.
        """
        self.rows, self.shared, self.notes = rows, shared or {}, notes

    def __len__(self) -> int:
        return len(next(iter(self.rows.values())))

    def take(self, index: Tensor) -> Batch:
        """Return the batch at int64 `index` (any shape; -1 is padding), with `mask` (float, 1 for real examples).

        Padding repeats the first example of its batch: 0 times another client's values is not 0 if these overflow.
        """
        safe = torch.where(index < 0, index[..., :1], index).clamp_min(0) if index.dim() else index.clamp_min(0)
        flat = safe.dim() == 1 and not safe.is_cuda
        batch = {name: v.index_select(0, safe) if flat else v[safe] for name, v in self.rows.items()}
        for name, (key, table) in self.shared.items():
            batch[name] = table[batch[key]]
        batch["mask"] = (index >= 0).to(torch.float32)
        return batch

    def to(self, device: torch.device) -> Examples:
        """Return the same examples on a device."""
        shared = {name: (key, table.to(device)) for name, (key, table) in self.shared.items()}
        return Examples({name: values.to(device) for name, values in self.rows.items()}, shared, self.notes)
