"""Data parallelism within a client update: the gradient of a local batch from micro-batches taken on any workers.

    B    examples of the batch     p    a micro-batch     N_p  its summed task loss     W_p  the sum of its weights
    R_p  the algorithm's loss terms of its examples, over B; the first micro-batch adds terms that depend on no example

    gradient = Σ_p ∇N_p / Σ_p W_p + Σ_p ∇R_p

Both sums follow one binary tree over the micro-batches, the number of which is a setting, so the result is
bit-identical whichever workers take them. It equals the gradient of the whole batch up to rounding; dropout knows the
position of a micro-batch in its batch. A term over a whole batch (`Loss.batch_term`) has no such sum and is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from simfl.errors import ConfigError
from simfl.models.call_context import BatchPart, batch_part
from simfl.protocol import Batch, ClientUpdate, Loss, Outputs, Parts, State, Weights
from simfl.timing import Clock
from simfl.training.batches import TrainingUnit
from simfl.training.context import PhaseContext
from simfl.training.forward import StepInputs, micro_step_loss
from simfl.weights import tree_sum


@dataclass(frozen=True)
class MicroBatch:
    """A part of one local batch, as rows of the training split.

    Attributes:
        client: Number of the client.
        rows: Rows of the training split, int64.
        positions: Positions of these rows among the client's own, if the algorithm needs them.
        first: Number of examples of the batch before this part.
        batch_size: Number of examples of the whole batch.
        keys: Keys of these examples for the phase's transform; None without one.
    """

    client: int
    rows: np.ndarray
    positions: np.ndarray | None
    first: int
    batch_size: int
    keys: np.ndarray | None = None


@dataclass(frozen=True)
class SharedStepInputs:
    """The inputs that all micro-batches of a local step share. `names`: the tensors to differentiate."""

    trained: Weights
    names: tuple[str, ...]
    received: Parts
    state: State
    update: ClientUpdate
    key: Tensor


@dataclass
class PartialGradient:
    """The contribution of a micro-batch: ∇N (`task`), ∇R (`rest`), N (`loss_sum`) and W (`loss_weight`)."""

    task: Weights
    rest: Weights | None
    loss_sum: Tensor
    loss_weight: Tensor
    clock: Clock = field(default_factory=Clock)


# takes the gradients of micro-batches, on any workers; results in their order
GradientTaker = Callable[[Sequence[MicroBatch], SharedStepInputs], list[PartialGradient]]


def micro_batches(unit: TrainingUnit, step: int, count: int, keys: np.ndarray | None = None) -> list[MicroBatch]:
    """Cut a local batch into neighbouring parts of equal size up to one; fewer where it has fewer examples.

    `keys`: keys of all examples of the unit, like its batches, for the phase's transform.
    """
    size = int((unit.batches[step] >= 0).sum())
    ends = [size * k // count for k in range(count + 1)]
    rows = unit.batches[step]

    def part_of(table: np.ndarray | None, a: int, b: int) -> np.ndarray | None:
        return None if table is None else table[step, a:b]

    return [
        MicroBatch(unit.client, rows[a:b], part_of(unit.positions, a, b), a, size, part_of(keys, a, b))
        for a, b in pairwise(ends)
        if b > a
    ]


def combine(parts: Sequence[PartialGradient], names: Sequence[str]) -> tuple[Weights, Tensor, Tensor]:
    """Return the gradient of a local batch by each of `names`, and the sum and weight of its task loss."""
    loss_sum = torch.stack([part.loss_sum for part in parts]).sum()
    loss_weight = torch.stack([part.loss_weight for part in parts]).sum()
    task, rest = tree_sum([part.task for part in parts]), tree_sum([part.rest for part in parts])
    assert task is not None
    mean = {name: t / loss_weight.clamp_min(1e-12) for name, t in task.items()}
    return {n: mean[n] if rest is None else mean[n] + rest[n] for n in names}, loss_sum, loss_weight


def partial_gradient(
    context: PhaseContext, batch: Batch, micro_batch: MicroBatch, shared: SharedStepInputs
) -> PartialGradient:
    """Return the contribution of a micro-batch; ConfigError if the loss has a term over the whole batch.

    `batch` holds the examples of the micro-batch.
    """
    (micro,) = context.phase.algorithm.micro_steps()
    leaves = {name: shared.trained[name].detach().requires_grad_() for name in shared.names}
    trained = {name: leaves.get(name, t) for name, t in shared.trained.items()}
    inputs = StepInputs(batch, trained, shared.received, shared.state, shared.update, shared.key)
    outputs: dict[str, Outputs] = {}
    with batch_part(BatchPart(micro_batch.first, len(micro_batch.rows))):
        loss = micro_step_loss(context, micro, inputs, outputs)
    if loss.batch_term is not None or _depends_on(loss.client_term, outputs):
        raise ConfigError("execution.data_parallel: the algorithm's loss has a term over the whole batch; allowed: 1")
    terms = _other_terms(loss, batch, micro_batch)
    rest = _gradient(torch.stack(terms).sum(), leaves, retain_graph=True) if terms else None
    loss_sum, loss_weight = loss.task_totals()
    task = _gradient(loss_sum, leaves, retain_graph=False)
    return PartialGradient(task, rest, loss_sum.detach(), loss_weight.detach())


def _other_terms(loss: Loss, batch: Batch, micro_batch: MicroBatch) -> list[Tensor]:
    """Return the algorithm's terms of the examples, over B, and in the first micro-batch its term of the client."""
    terms = []
    if loss.example_terms is not None:
        terms.append((loss.example_terms * batch["mask"]).sum() / micro_batch.batch_size)
    if loss.client_term is not None and micro_batch.first == 0:
        terms.append(loss.client_term)
    return terms


def _depends_on(term: Tensor | None, outputs: dict[str, Outputs]) -> bool:
    tensors = [tensor for out in outputs.values() for tensor in out.tensors().values() if tensor.requires_grad]
    if term is None or not term.requires_grad or not tensors:
        return False
    return any(g is not None for g in torch.autograd.grad(term, tensors, retain_graph=True, allow_unused=True))


def _gradient(value: Tensor, leaves: Weights, retain_graph: bool) -> Weights:
    if not value.requires_grad:
        return {name: torch.zeros_like(t) for name, t in leaves.items()}
    found = torch.autograd.grad(value, list(leaves.values()), retain_graph=retain_graph, materialize_grads=True)
    return dict(zip(leaves, found, strict=True))
