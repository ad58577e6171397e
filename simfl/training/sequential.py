"""The `sequential` execution mode: one client at a time, eagerly. It is the reference for the other modes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from simfl.protocol import Batch, ClientUpdate, MicroStep, Outputs, State, Weights
from simfl.training.batches import TrainingUnit
from simfl.training.data_parallel import SharedStepInputs, combine, micro_batches
from simfl.training.dp_records import noised_gradient
from simfl.training.draws import refuse_recomputed_draws
from simfl.training.executor import Executor, OptimizerStep, TrainingInputs, TrainingResult
from simfl.training.forward import StepInputs, can_skip, evaluation_point, keeps_gradients, micro_step_loss, step_key
from simfl.training.model_states import ModelStates
from simfl.training.optimizer_step import StackedOptimizer, stacked_optimizers

Gradient = tuple[Weights, Tensor, Tensor]  # by tensor; sum and weight of the task loss


@dataclass(frozen=True)
class ClientMicroStep:
    """A micro-step of one client.

    Attributes:
        micro: The declared step.
        optimizer: Its optimizer, over tensors [1, …].
        trained: All trained tensors of the client, those of `leaves` included.
        leaves: The tensors to differentiate: views of what the optimizer steps, so they follow it.
    """

    micro: MicroStep
    optimizer: StackedOptimizer
    trained: Weights
    leaves: Weights


def train(executor: Executor, inputs: TrainingInputs) -> TrainingResult:
    """Train one client or privacy unit: n = 1 in all inputs."""
    context, (unit,) = executor.context, inputs.units
    optimizers = stacked_optimizers(context, inputs.weights, inputs.client_states)
    micro_steps = [_micro_step(micro, optimizer, inputs.weights) for micro, optimizer in optimizers]
    trained = _only_row(inputs.weights)
    state = {key: _only_row(group) for key, group in inputs.state.items()}
    update, key = ClientUpdate(*(t[0] for t in inputs.update)), torch.tensor(unit.key, device=context.device)
    loss_sum = loss_weight = torch.zeros((), device=context.device)
    states = ModelStates(context, inputs.model_states[0]) if inputs.model_states else None
    for step, batch in enumerate(_batches(executor, unit)):
        if states is not None:
            states.begin_step()
        update_now = update._replace(step=update.step + step)
        step_inputs = StepInputs(batch, trained, inputs.received, state, update_now, step_key(key, step), states)
        (sums, weights), state = _local_step(executor, unit, step, micro_steps, step_inputs)
        loss_sum, loss_weight = loss_sum + sums, loss_weight + weights
    keep = context.phase.local.keep_optimizer
    zeros = [executor.num_zero_examples.pop() for _ in range(len(executor.num_zero_examples))]
    return TrainingResult(
        weights=inputs.weights,
        model_states=inputs.model_states,
        loss_sums=loss_sum[None],
        loss_weights=loss_weight[None],
        state={key: _as_row(group) for key, group in state.items()},
        optimizer_states=[s for _, optimizer in optimizers for s in optimizer.states()] if keep else [],
        num_noised_steps=unit.num_steps if context.has_record_privacy else 0,
        num_zero=torch.stack(zeros).sum() if zeros else None,
    )


def _only_row(tensors: Weights) -> Weights:
    """Return the only row of tensors [1, …], as views."""
    return {name: t[0] for name, t in tensors.items()}


def _as_row(tensors: Weights) -> Weights:
    return {name: t[None] for name, t in tensors.items()}


def _micro_step(micro: MicroStep, optimizer: StackedOptimizer, weights: Weights) -> ClientMicroStep:
    leaves = {name: t[0].detach().requires_grad_() for name, t in optimizer.weights.items()}
    return ClientMicroStep(micro, optimizer, {name: leaves.get(name, t[0]) for name, t in weights.items()}, leaves)


def _batches(executor: Executor, unit: TrainingUnit) -> Iterator[Batch]:
    """Yield the batch of every local step, without padding; empty ones where micro-batches are taken instead."""
    device, keys = executor.context.device, executor.example_keys(unit)
    rows = torch.from_numpy(unit.batches).to(device)
    positions = None if unit.positions is None else torch.from_numpy(unit.positions).to(device)
    for step, count in enumerate((unit.batches >= 0).sum(1).tolist()):
        if executor.context.data_parallel > 1:
            yield {}
        else:
            own_positions = None if positions is None else positions[step, :count]
            own_keys, length = None if keys is None else keys[step, :count], executor.length_of([unit.batches[step]])
            yield executor.batch(rows[step, :count], own_positions, own_keys, length)


def _local_step(
    executor: Executor, unit: TrainingUnit, step: int, micro_steps: list[ClientMicroStep], inputs: StepInputs
) -> tuple[tuple[Tensor, Tensor], State]:
    """Run every micro-step; return sum and weight of the task loss in the first, and the algorithm's new state."""
    context, algorithm = executor.context, executor.context.phase.algorithm
    keeps = keeps_gradients(context, tuple(own.micro for own in micro_steps))
    losses: list[tuple[Tensor, Tensor]] = []
    outputs: dict[str, Outputs] = {}
    gradients: list[Weights] = []
    gates = [own.micro.active is None or bool(own.micro.active(inputs.update)) for own in micro_steps]
    skipped = can_skip(context, [own.micro for own in micro_steps], gates)
    for number, own in enumerate(micro_steps):
        if skipped[number] and not executor.observer.is_active:
            continue
        own = _at_point(own, tuple(gradients), inputs)
        gradient, *loss = _gradient(executor, unit, step, own, replace(inputs, trained=own.trained), outputs)
        stacked = _as_row(gradient)
        if own.micro.steps and gates[number]:
            own.optimizer.step(stacked, [True], [unit.learning_rates[step]])
        if executor.observer.is_active:
            sums, weights = (t[None] for t in loss)
            executor.observer.stepped(
                OptimizerStep([unit], step, number, sums, weights, stacked, own.optimizer.weights)
            )
        if keeps:
            gradients.append(gradient)
        del gradient, stacked  # the next gradients reuse their memory, and their place in the cache
        outputs = {name: one.detach() for name, one in outputs.items()}
        losses.append((loss[0], loss[1]))
    if not algorithm.needs_after_step():
        return losses[0], inputs.state
    return losses[0], algorithm.after_step(
        outputs, tuple(gradients), inputs.batch, inputs.trained, inputs.received, inputs.state, inputs.update
    )


def _at_point(own: ClientMicroStep, gradients: tuple[Weights, ...], inputs: StepInputs) -> ClientMicroStep:
    """Return the micro-step at the weights of `MicroStep.at`."""
    if own.micro.at is None:
        return own
    current = {name: t.detach() for name, t in inputs.trained.items()}
    moved = evaluation_point(own.micro, current, gradients, inputs.state, inputs.update)
    point = {name: t.detach() for name, t in {**current, **moved}.items()}
    leaves = {name: point[name].requires_grad_() for name in own.leaves}
    return replace(own, trained={**point, **leaves}, leaves=leaves)


def _gradient(
    executor: Executor,
    unit: TrainingUnit,
    step: int,
    own: ClientMicroStep,
    inputs: StepInputs,
    outputs: dict[str, Outputs],
) -> Gradient:
    """Return the gradient by each of the leaves; adds the results of passes to `outputs`."""
    context = executor.context
    if context.data_parallel > 1:
        trained = {name: t.detach() for name, t in inputs.trained.items()}
        shared = SharedStepInputs(trained, tuple(own.leaves), inputs.received, inputs.state, inputs.update, inputs.key)
        micro = micro_batches(unit, step, context.data_parallel, executor.example_keys(unit))
        parts = executor.partial_gradients(micro, shared)
        return combine(parts, shared.names)
    if context.has_record_privacy:
        gradient, loss_sum, loss_weight, num_zero = noised_gradient(context, own.micro, inputs, own.leaves, unit)
        executor.num_zero_examples.append(num_zero)
        return gradient, loss_sum, loss_weight
    loss = micro_step_loss(context, own.micro, inputs, outputs)
    (sums, weights), total = loss.task_totals(), loss.total(inputs.batch["mask"])
    with refuse_recomputed_draws(context):
        found = torch.autograd.grad(total, list(own.leaves.values()), materialize_grads=True)
    return dict(zip(own.leaves, found, strict=True)), sums.detach(), weights.detach()
