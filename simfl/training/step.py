"""One local step of n clients together, as a function of stacked tensors, with the gradient in one of two forms.

`grouped_gradients`: one pass of the model over all clients' examples, with a frozen base shared by all and stacked
weights in the trained layers (see `simfl.models.grouped_layers`), and plain autograd. Every client's loss reads its own
rows alone, so the gradient of the sum of losses is each client's own gradient. `stacked_gradients`: the whole step
under `torch.func.vmap` over stacked weights, where a trained layer has no grouped form.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from simfl.algorithms.base import Algorithm
from simfl.protocol import Batch, ClientUpdate, MicroStep, Outputs, Parts, State, Weights
from simfl.stacking import parts_axis
from simfl.training.context import PhaseContext
from simfl.training.forward import (
    StepInputs,
    can_skip,
    evaluation_point,
    keeps_gradients,
    micro_step_loss,
    model_inputs,
    pass_weights,
    run_forward,
    step_key,
    with_task_loss,
)

OutputFields = dict[str, dict[str, Tensor]]  # outputs of passes by pass and field, [n, …]


class StepResult(NamedTuple):
    """Gradients of a micro-step: by each stepped tensor [n, …], with sum and weight of the task loss [n]."""

    gradients: Weights
    loss_sums: Tensor
    loss_weights: Tensor
    outputs: OutputFields  # of this and the earlier micro-steps, detached


# gradients by the given tensors [n, …]; the outputs are those of the earlier micro-steps
GradientFunction = Callable[[PhaseContext, MicroStep, Weights, StepInputs, OutputFields], StepResult]


class StepOptimizer(Protocol):
    """An optimizer over `weights`, stepped in place."""

    @property
    def weights(self) -> Weights:
        """The tensors to step, [n, …]."""

    def step(self, gradients: Weights, active: Any, rates: Any) -> None:
        """Clip and step the `active` clients at their `rates`."""


class StepCallback(Protocol):
    """A function that is called after every optimizer step."""

    def __call__(self, micro_step: int, result: StepResult, weights: Weights) -> None:
        """Receive the number of the micro-step, its gradients, and the stepped tensors."""


@dataclass
class TrainingState:
    """The tensors that n clients read and change while they train, [n, …].

    Attributes:
        weights: Trained tensors and extra parameters, stepped in place.
        state: The algorithm's state.
        loss_sums: Task loss summed so far, [n].
        loss_weights: Weight of the task loss so far, [n].
        received: The decoded download: the same for all, or `StackedParts`.
        update: Facts of the client updates at local step 0.
        keys: Dropout keys, [n].
    """

    weights: Weights
    state: State
    loss_sums: Tensor
    loss_weights: Tensor
    received: Parts
    update: ClientUpdate
    keys: Tensor


@dataclass(frozen=True)
class LocalStep:
    """The inputs of one local step.

    Attributes:
        step: Number of the step, from 0.
        batch: Examples, [n, B, …].
        active: Whether each client has not finished: n bools, or a tensor [n] for captured steps.
        rates: Learning rate of each client, [n].
        callback: Called after every optimizer step; None: nothing is.
    """

    step: int | Tensor
    batch: Batch
    active: list[bool] | Tensor
    rates: np.ndarray | Tensor
    callback: StepCallback | None = None


def local_step(
    context: PhaseContext,
    gradients_of: GradientFunction,
    optimizers: Sequence[tuple[MicroStep, StepOptimizer]],
    training: TrainingState,
    step: LocalStep,
) -> None:
    """Run every micro-step of a local step; changes `training`."""
    update = training.update._replace(step=training.update.step + step.step)
    key = step_key(training.keys, step.step)
    inputs = StepInputs(step.batch, training.weights, training.received, training.state, update, key)
    keeps = keeps_gradients(context, tuple(micro for micro, _ in optimizers))
    outputs: OutputFields = {}
    gradients: list[Weights] = []
    skipped = _skipped(context, [micro for micro, _ in optimizers], update, step)
    for number, (micro, optimizer) in enumerate(optimizers):
        if skipped[number]:
            continue
        here = _at_point(micro, inputs, gradients)
        stepped = {name: here.trained[name] for name in optimizer.weights}
        result = gradients_of(context, micro, stepped, here, outputs)
        del here, stepped
        if micro.steps:
            optimizer.step(result.gradients, _stepping(micro, update, step.active), step.rates)
        if step.callback is not None:
            step.callback(number, result, optimizer.weights)
        if keeps:
            gradients.append(result.gradients)
        outputs = result.outputs
        if not any(not left_out for left_out in skipped[:number]):
            training.loss_sums = training.loss_sums + result.loss_sums
            training.loss_weights = training.loss_weights + result.loss_weights
        del result  # the next gradients reuse its memory
    if context.phase.algorithm.needs_after_step():
        training.state = _after_step(context, outputs, tuple(gradients), inputs, step.active)


def _skipped(
    context: PhaseContext, micro_steps: Sequence[MicroStep], update: ClientUpdate, step: LocalStep
) -> list[bool]:
    """Return which micro-steps are inactive for all clients and not computed; none in captured or observed steps."""
    if isinstance(step.active, Tensor) or step.callback is not None or all(one.active is None for one in micro_steps):
        return [False] * len(micro_steps)
    gates = [one.active is None or bool((torch.func.vmap(one.active)(update) != 0).any()) for one in micro_steps]
    return can_skip(context, micro_steps, gates)


def _at_point(micro: MicroStep, inputs: StepInputs, gradients: list[Weights]) -> StepInputs:
    """Return the inputs at the weights of `MicroStep.at`."""
    if micro.at is None:
        return inputs
    moved = torch.func.vmap(partial(evaluation_point, micro))(
        inputs.trained, tuple(gradients), inputs.state, inputs.update
    )
    return replace(inputs, trained={**inputs.trained, **{name: t.detach() for name, t in moved.items()}})


def _stepping(micro: MicroStep, update: ClientUpdate, active: list[bool] | Tensor) -> list[bool] | Tensor:
    """Return which clients the optimizer steps: the active ones, where `MicroStep.active` lets them."""
    if micro.active is None:
        return active
    gates = torch.func.vmap(micro.active)(update) != 0
    if isinstance(active, Tensor):
        return active & gates
    return [on and gate for on, gate in zip(active, gates.tolist(), strict=True)]


def _after_step(
    context: PhaseContext,
    outputs: OutputFields,
    gradients: tuple[Weights, ...],
    inputs: StepInputs,
    active: list[bool] | Tensor,
) -> State:
    """Return the algorithm's state after a local step; it stays as it was for clients that have finished."""

    def client(
        fields: OutputFields,
        gradients: tuple[Weights, ...],
        batch: Batch,
        trained: Weights,
        state: State,
        update: ClientUpdate,
        received: Parts,
    ) -> State:
        found = {name: with_task_loss(context, Outputs(**tensors), batch) for name, tensors in fields.items()}
        return context.phase.algorithm.after_step(found, gradients, batch, trained, received, state, update)

    after = torch.func.vmap(client, (0, 0, 0, 0, 0, 0, parts_axis(inputs.received)))(
        outputs, gradients, inputs.batch, inputs.trained, inputs.state, inputs.update, inputs.received
    )
    mask = active if isinstance(active, Tensor) else torch.tensor(active, device=context.device)

    def where_active(new: Tensor, old: Tensor) -> Tensor:
        return torch.where(mask.reshape(-1, *[1] * (old.dim() - 1)), new, old)

    return {
        key: {name: where_active(after[key][name], t) for name, t in group.items()}
        for key, group in inputs.state.items()
    }


def can_group(context: PhaseContext) -> bool:
    """Return whether every trained layer has a grouped form."""
    networks = [context.network] + ([context.mentor] if context.mentor is not None else [])
    return all(network.has_grouped_form for network in networks)


def stacked_gradients(
    context: PhaseContext, micro: MicroStep, stepped: Weights, inputs: StepInputs, outputs: OutputFields
) -> StepResult:
    """Return the gradients under `vmap`. `stepped`: the tensors to differentiate."""

    def client(
        leaves: Weights,
        rest: Weights,
        state: State,
        batch: Batch,
        update: ClientUpdate,
        key: Tensor,
        fields: OutputFields,
        received: Parts,
    ) -> tuple[Tensor, tuple[tuple[Tensor, Tensor], OutputFields]]:
        found = {name: Outputs(**tensors) for name, tensors in fields.items()}
        single = StepInputs(batch, {**rest, **leaves}, received, state, update, key)
        loss = micro_step_loss(context, micro, single, found, under_vmap=True)
        detached = {name: out.detach().tensors() for name, out in found.items()}
        return loss.total(batch["mask"]), (loss.task_totals(), detached)

    rest = {name: t for name, t in inputs.trained.items() if name not in stepped}
    axes = (0, 0, 0, 0, 0, 0, 0, parts_axis(inputs.received))
    gradient = torch.func.vmap(torch.func.grad(client, has_aux=True), axes, randomness="error")
    gradients, ((sums, weights), outputs) = gradient(
        stepped, rest, inputs.state, inputs.batch, inputs.update, inputs.key, outputs, inputs.received
    )
    return StepResult(gradients, sums.detach(), weights.detach(), outputs)


def grouped_gradients(
    context: PhaseContext, micro: MicroStep, stepped: Weights, inputs: StepInputs, outputs: OutputFields
) -> StepResult:
    """Return the gradients of one pass over all clients, inside of `grouped_forward`."""
    leaves = {name: t.detach().requires_grad_() for name, t in stepped.items()}
    inputs = replace(inputs, trained={name: leaves.get(name, t) for name, t in inputs.trained.items()})
    fields = {**outputs, **_grouped_outputs(context, micro, inputs)}

    def client(
        fields: OutputFields, batch: Batch, trained: Weights, state: State, update: ClientUpdate, received: Parts
    ) -> tuple[Tensor, Tensor, Tensor]:
        found = {name: Outputs(**tensors) for name, tensors in fields.items()}
        loss = micro.loss(found, batch, trained, received, state, update)
        return loss.total(batch["mask"]), *loss.task_totals()

    if _is_task_loss(micro):
        totals, sums, weights = _task_loss(fields["student"])
    else:
        totals, sums, weights = torch.func.vmap(client, (0, 0, 0, 0, 0, parts_axis(inputs.received)))(
            fields, inputs.batch, inputs.trained, inputs.state, inputs.update, inputs.received
        )
    found = torch.autograd.grad(totals.sum(), list(leaves.values()), materialize_grads=True)
    detached = {name: {key: t.detach() for key, t in tensors.items()} for name, tensors in fields.items()}
    return StepResult(dict(zip(leaves, found, strict=True)), sums.detach(), weights.detach(), detached)


def _grouped_outputs(context: PhaseContext, micro: MicroStep, inputs: StepInputs) -> OutputFields:
    """Run the passes of a micro-step over the examples of all clients, concatenated."""
    forwards, n = context.phase.algorithm.forwards(), len(inputs.key)
    flat = {name: t.flatten(0, 1) for name, t in inputs.batch.items()}
    fields: OutputFields = {}
    for name in micro.forwards:
        weights = pass_weights(context, forwards[name], inputs)
        out = run_forward(context, forwards[name], weights, model_inputs(context, flat), inputs.key, num_groups=n)
        tensors = with_task_loss(context, out, flat).tensors()
        fields[name] = {key: t.unflatten(0, (n, -1)) for key, t in tensors.items()}
    return fields


def _is_task_loss(micro: MicroStep) -> bool:
    """Return whether the algorithm adds nothing to the task loss."""
    return getattr(micro.loss, "__func__", None) is Algorithm.loss


def _task_loss(student: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Return loss, sums and weights of the task loss alone, [n] each; `vmap` costs more than a small pass."""
    sums, weights = student["loss_sums"].sum(1), student["loss_weights"].sum(1)
    return sums / weights.clamp_min(1e-12), sums, weights
