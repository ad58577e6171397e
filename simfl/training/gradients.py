"""The gradient of every client's loss in a local step: two forms of one program, chosen by what is trained.

`grouped`: one pass of the model over all clients' examples, a frozen base shared by all, stacked weights in the layers
that are trained (see `models.grouped`), and plain autograd; since every client's loss reads only its own rows, the
gradient of the sum is each client's own. `stacked`: the whole local step under `torch.func.vmap` over stacked weights,
where a trained layer has no grouped form.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from simfl.algorithms.base import Algorithm
from simfl.protocol import Batch, ClientUpdate, MicroStep, Outputs, Parts, State, Weights
from simfl.training.context import PhaseContext, call, inputs_of, tensors_for, with_task
from simfl.training.step_inputs import StepInputs, loss_of

Carried = dict[str, dict[str, Tensor]]  # outputs of passes by name and field, [n, …]
Gradients = Callable[..., tuple[Weights, tuple[Tensor, Tensor], Carried]]


def is_grouped(stage: PhaseContext) -> bool:
    """Whether every trained layer has a grouped form."""
    networks = [stage.network] + ([stage.mentor] if stage.mentor is not None else [])
    return all(network.groupable for network in networks)


def stacked(
    stage: PhaseContext,
    micro: MicroStep,
    stepped: Weights,
    start: Weights,
    received: Parts,
    state: State,
    batch: Batch,
    visit: ClientUpdate,
    keys: Tensor,
    carried: Carried,
) -> tuple[Weights, tuple[Tensor, Tensor], Carried]:
    """The gradient by each of `stepped` [n, …], sum and weight of the task loss [n], what passes gave."""

    def client(
        mine: Weights, rest: Weights, state: State, batch: Batch, visit: ClientUpdate, key: Tensor, carried: Carried
    ) -> tuple[Tensor, tuple[tuple[Tensor, Tensor], Carried]]:
        outputs = {name: Outputs(**fields) for name, fields in carried.items()}
        now = StepInputs(batch, {**rest, **mine}, received, state, visit, key)
        loss = loss_of(stage, micro, now, outputs, mapped=True)
        kept = {name: out.detach().tensors() for name, out in outputs.items()}
        return loss.total(batch["mask"]), (loss.task_totals(), kept)

    rest = {name: t for name, t in start.items() if name not in stepped}
    step = torch.func.vmap(torch.func.grad(client, has_aux=True), randomness="error")
    gradients, (task, kept) = step(stepped, rest, state, batch, visit, keys, carried)
    return gradients, (task[0].detach(), task[1].detach()), kept


def grouped(
    stage: PhaseContext,
    micro: MicroStep,
    stepped: Weights,
    start: Weights,
    received: Parts,
    state: State,
    batch: Batch,
    visit: ClientUpdate,
    keys: Tensor,
    carried: Carried,
) -> tuple[Weights, tuple[Tensor, Tensor], Carried]:
    """As `stacked`, inside of `models.grouped.grouped`."""
    forwards, n = stage.phase.algorithm.forwards(), len(keys)
    leaves = {name: t.detach().requires_grad_() for name, t in stepped.items()}
    trained = {name: leaves.get(name, t) for name, t in start.items()}
    flat = {name: t.flatten(0, 1) for name, t in batch.items()}
    fields = dict(carried)
    for name in micro.forwards:
        weights = tensors_for(stage.sources[name], trained, received, state)
        out = with_task(stage, call(stage, forwards[name], weights, inputs_of(stage, flat), keys, groups=n), flat)
        fields[name] = {key: t.unflatten(0, (n, -1)) for key, t in out.tensors().items()}

    def client(
        fields: Carried, batch: Batch, trained: Weights, state: State, visit: ClientUpdate
    ) -> tuple[Tensor, Tensor, Tensor]:
        outputs = {name: Outputs(**tensors) for name, tensors in fields.items()}
        loss = micro.loss(outputs, batch, trained, received, state, visit)
        return loss.total(batch["mask"]), *loss.task_totals()

    if _is_task_alone(micro):
        totals, sums, counts = _task(fields["student"])
    else:
        totals, sums, counts = torch.func.vmap(client)(fields, batch, trained, state, visit)
    gradients = torch.autograd.grad(totals.sum(), list(leaves.values()), materialize_grads=True)
    kept = {name: {key: t.detach() for key, t in tensors.items()} for name, tensors in fields.items()}
    return dict(zip(leaves, gradients, strict=True)), (sums.detach(), counts.detach()), kept


def _is_task_alone(micro: MicroStep) -> bool:
    """Whether the algorithm adds nothing to the task's loss."""
    return getattr(micro.loss, "__func__", None) is Algorithm.loss


def _task(student: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """What `client` gives where the loss is the task's alone, [n] each; mapping costs more than a small pass."""
    sums, counts = student["loss_sums"].sum(1), student["loss_weights"].sum(1)
    return sums / counts.clamp_min(1e-12), sums, counts
