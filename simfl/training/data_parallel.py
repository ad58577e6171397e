"""Data parallel inside a visit: the gradient of a local batch from pieces of it, taken wherever there is a worker.

    B   examples of the batch      p   a piece of it      N_p   its task losses summed      W_p   their weights summed
    R_p   what the algorithm adds for its examples, over B; the first piece has what depends on no example

    gradient = Σ_p ∇N_p / Σ_p W_p + Σ_p ∇R_p

Both sums follow one binary tree over the pieces, the number of which is a setting: whoever takes which, the bits are
the same. They are the gradient of the whole batch up to rounding; dropout knows where in its batch a piece stands. A
term over a whole batch (`Loss.batch`) has no such sum and is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from simfl.errors import ConfigError
from simfl.models.call_context import BatchPart, batch_part
from simfl.protocol import ClientUpdate, Outputs, Parts, State, Weights
from simfl.timing import Clock
from simfl.training.context import PhaseContext, TrainingUnit
from simfl.training.step_inputs import StepInputs, loss_of
from simfl.weights import tree_sum


@dataclass(frozen=True)
class MicroBatch:
    """Examples of one local batch, as rows of the split."""

    client: int
    rows: np.ndarray
    places: np.ndarray | None
    first: int  # examples of the batch that come before
    whole: int  # examples of the batch


@dataclass(frozen=True)
class SharedStepInputs:
    """What the pieces of one local step share."""

    trained: Weights
    names: tuple[str, ...]  # of those that are differentiated
    received: Parts
    state: State
    visit: ClientUpdate
    key: Tensor  # of dropout


@dataclass
class PartialGradient:
    """What a piece adds to the gradient: ∇N and ∇R by tensor, N and W."""

    task: Weights
    rest: Weights | None
    sums: Tensor
    weights: Tensor
    clock: Clock = field(default_factory=Clock)


GradientTaker = Callable[
    [Sequence[MicroBatch], SharedStepInputs], list[PartialGradient]
]  # has pieces taken, wherever; results in their order


def gradients(
    stage: PhaseContext, item: TrainingUnit, step: int, shared: SharedStepInputs
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, ...]]:
    """Sum and weight of the task loss of a local batch, and its gradient by each of the step's names."""
    assert stage.taker is not None
    partial_gradients = stage.taker(cut(item, step, stage.pieces), shared)
    sums, weights = (torch.stack([getattr(s, name) for s in partial_gradients]).sum() for name in ("sums", "weights"))
    task, rest = tree_sum([s.task for s in partial_gradients]), tree_sum([s.rest for s in partial_gradients])
    assert task is not None
    whole = {name: t / weights.clamp_min(1e-12) for name, t in task.items()}
    return (sums, weights), tuple(whole[n] if rest is None else whole[n] + rest[n] for n in shared.names)


def cut(item: TrainingUnit, step: int, pieces: int) -> list[MicroBatch]:
    """A local batch as neighbouring pieces, as even as can be; fewer where it has fewer examples."""
    count = int((item.batches[step] >= 0).sum())
    ends = [count * k // pieces for k in range(pieces + 1)]
    places = item.places
    return [
        MicroBatch(
            item.client, item.batches[step, a:b], None if places is None else places[step, a:b], first=a, whole=count
        )
        for a, b in pairwise(ends)
        if b > a
    ]


def partial_gradient(stage: PhaseContext, piece: MicroBatch, shared: SharedStepInputs) -> PartialGradient:
    """What a piece adds. ConfigError where the loss has a term over the whole batch."""
    (micro,) = stage.phase.algorithm.micro_steps()
    leaves = {name: shared.trained[name].detach().requires_grad_() for name in shared.names}
    trained = {name: leaves.get(name, t) for name, t in shared.trained.items()}
    rows = torch.from_numpy(piece.rows).to(stage.device)
    batch = stage.batch(rows, None if piece.places is None else torch.from_numpy(piece.places).to(stage.device))
    now = StepInputs(batch, trained, shared.received, shared.state, shared.visit, shared.key)
    outputs: dict[str, Outputs] = {}
    with batch_part(BatchPart(piece.first, len(rows))):
        loss = loss_of(stage, micro, now, outputs)
    if loss.batch_term is not None or _reads(loss.client_term, outputs):
        raise ConfigError("execution.data_parallel: the algorithm's loss has a term of a whole batch; allowed: 1")
    extra = [] if loss.example_terms is None else [(loss.example_terms * batch["mask"]).sum() / piece.whole]
    extra += [loss.client_term] if loss.client_term is not None and piece.first == 0 else []
    rest = _gradient(torch.stack(extra).sum(), leaves, keep=True) if extra else None
    sums, weights = loss.task_totals()
    return PartialGradient(_gradient(sums, leaves, keep=False), rest, sums.detach(), weights.detach())


def _reads(term: Tensor | None, outputs: dict[str, Outputs]) -> bool:
    """Whether a term depends on what passes gave."""
    given = [tensor for out in outputs.values() for tensor in out.tensors().values() if tensor.requires_grad]
    if term is None or not term.requires_grad or not given:
        return False
    return any(g is not None for g in torch.autograd.grad(term, given, retain_graph=True, allow_unused=True))


def _gradient(value: Tensor, leaves: Weights, keep: bool) -> Weights:
    if not value.requires_grad:
        return {name: torch.zeros_like(t) for name, t in leaves.items()}
    found = torch.autograd.grad(value, list(leaves.values()), retain_graph=keep, materialize_grads=True)
    return dict(zip(leaves, found, strict=True))


def all_here(stage: PhaseContext) -> PhaseContext:
    """The stage, where it is to work in pieces with them taken one after the other in this process."""
    if stage.pieces == 1:
        return stage
    return replace(stage, taker=lambda pieces, shared: [partial_gradient(stage, piece, shared) for piece in pieces])
