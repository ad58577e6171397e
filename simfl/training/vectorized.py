"""The `vectorized` execution mode: n clients as one computation, a step of all of them at once.

On a CPU, and where the optimizer has no form of tensor operations alone, Python runs each step. On a GPU a step is a
program of tensors (see `simfl.training.compiled`). Batches are padded here, and padding would enter the statistics of
batch normalisation: models whose passes change more than trained parameters are trained by `sequential`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from simfl.models.grouped_layers import grouped_forward, ungrouped_params
from simfl.protocol import ClientUpdate, MicroStep, State, Weights
from simfl.stacking import select_namespace, to_device
from simfl.training.batches import TrainingUnit
from simfl.training.executor import Executor, OptimizerStep, TrainingInputs, TrainingResult
from simfl.training.optimizer_step import stacked_optimizers
from simfl.training.step import (
    GradientFunction,
    LocalStep,
    StepCallback,
    StepResult,
    TrainingState,
    can_group,
    grouped_gradients,
    local_step,
    stacked_gradients,
)
from simfl.training.tensor_optimizer import TensorOptimizer, load_moments, save_moments
from simfl.weights import select_names

SMALL_MODEL = 1 << 17  # values of a model
NO_ROWS = np.full(1, -1)  # batch of a client that has finished
TENSOR = object()  # stands for a tensor in a list of leaves, so that a cached program holds no tensors of its first run


def pays_on_cpu(module: nn.Module, trained: tuple[str, ...]) -> bool:
    """Return whether `vectorized` is faster than `sequential` on a CPU: where overhead dominates a local step.

    Perceptrons with batches of 10, 16 clients per batch: 0.4 of the sequential time at 50,000 values, 0.6 at 190,000,
    and 1.5 times it at 1,100,000, where the stacked weights no longer fit the cache. Grouped convolutions are slow on
    CPUs.
    """
    num_values = sum(parameter.numel() for parameter in module.parameters())
    convolves = any(isinstance(layer, (nn.Conv1d, nn.Conv2d, nn.Conv3d)) for layer in module.modules())
    return num_values <= SMALL_MODEL and not convolves and not ungrouped_params(module, trained)


def train(executor: Executor, inputs: TrainingInputs) -> TrainingResult:
    """Train all clients or privacy units of the inputs together."""
    context, units = executor.context, inputs.units
    zeros = torch.zeros(len(units), device=context.device)
    keys = to_device(context.device, np.array([unit.key for unit in units], dtype=np.int64))
    training = TrainingState(inputs.weights, inputs.state, zeros, zeros.clone(), inputs.received, inputs.update, keys)
    grouped = can_group(context)
    gradients_of = grouped_gradients if grouped else stacked_gradients
    with ExitStack() as stack:
        for network in [context.network, context.mentor] if grouped else []:
            if network is not None:
                stack.enter_context(grouped_forward(network.grouped_layers))
        train_steps = _train_eagerly if executor.compiled is None else _train_compiled
        training, optimizer_states = train_steps(executor, gradients_of, inputs, training)
    return TrainingResult(
        training.weights,
        inputs.model_states,
        training.loss_sums,
        training.loss_weights,
        training.state,
        optimizer_states if context.phase.local.keep_optimizer else [],
    )


def _train_eagerly(
    executor: Executor, gradients_of: GradientFunction, inputs: TrainingInputs, training: TrainingState
) -> tuple[TrainingState, list[State]]:
    """Run every operation by Python, with any optimizer."""
    context, units = executor.context, inputs.units
    optimizers = stacked_optimizers(context, training.weights, inputs.client_states)
    num_steps = max(unit.num_steps for unit in units)
    rows, positions = _batch_tables(units, num_steps, context.device)
    own_keys = [keys for unit in units if (keys := executor.example_keys(unit)) is not None]
    keys = _side_by_side(own_keys, num_steps, 0) if own_keys else None
    rates = np.zeros((num_steps, len(units)))
    for k, unit in enumerate(units):
        rates[: unit.num_steps, k] = unit.learning_rates
    for step in range(num_steps):
        own_positions = None if positions is None else positions[step]
        length = executor.length_of([unit.batches[step] if step < unit.num_steps else NO_ROWS for unit in units])
        batch = executor.batch(rows[step], own_positions, None if keys is None else keys[step], length)
        active = [step < unit.num_steps for unit in units]
        callback = _callback(executor, units, step)
        local_step(context, gradients_of, optimizers, training, LocalStep(step, batch, active, rates[step], callback))
    keep = context.phase.local.keep_optimizer
    return training, [state for _, optimizer in optimizers for state in optimizer.states()] if keep else []


def _callback(executor: Executor, units: list[TrainingUnit], step: int) -> StepCallback | None:
    """Return what passes optimizer steps on to the observer; None if it does not listen."""
    if not executor.observer.is_active:
        return None

    def callback(micro_step: int, result: StepResult, weights: Weights) -> None:
        sums, loss_weights = result.loss_sums, result.loss_weights
        executor.observer.stepped(OptimizerStep(units, step, micro_step, sums, loss_weights, result.gradients, weights))

    return callback


def _train_compiled(
    executor: Executor, gradients_of: GradientFunction, inputs: TrainingInputs, training: TrainingState
) -> tuple[TrainingState, list[State]]:
    """Run one program of tensors, with any optimizer that has a form of tensor operations."""
    context, units = executor.context, inputs.units
    local, stepped = context.phase.local, _stepped_tensors(context.phase.algorithm.micro_steps(), training.weights)
    moments = []
    for number, (_, tensors) in enumerate(stepped):
        saved = [select_namespace(state, f"optimizer{number}") for state in inputs.client_states]
        moments.append(load_moments(local, tensors, saved))
    training, moments = _run_program(executor, gradients_of, units, training, moments)
    if not local.keep_optimizer:
        return training, []
    stepped = _stepped_tensors(context.phase.algorithm.micro_steps(), training.weights)
    pairs = zip(moments, stepped, strict=True)
    return training, [state for own, (_, tensors) in pairs for state in save_moments(own, tensors, len(units))]


def _stepped_tensors(micro_steps: Sequence[MicroStep], weights: Weights) -> list[tuple[MicroStep, Weights]]:
    """Return each micro-step with the tensors that it steps."""
    names = [select_names(weights, one.trains, one.excludes, where="algorithm") for one in micro_steps]
    return [(one, {name: weights[name] for name in own}) for one, own in zip(micro_steps, names, strict=True)]


def _run_program(
    executor: Executor,
    gradients_of: GradientFunction,
    units: list[TrainingUnit],
    training: TrainingState,
    moments: list[State],
) -> tuple[TrainingState, list[State]]:
    """Take all local steps; the returned tensors are valid until the next run of the program."""
    assert executor.compiled is not None
    _ = executor.examples  # loaded before: what is made during tracing becomes part of the trace
    context, most = executor.context, max(unit.num_steps for unit in units)
    ragged = any(unit.num_steps < most for unit in units)
    counter = torch.zeros(1, dtype=torch.int64, device=context.device)
    # a power of two as length, so that few programs serve all updates
    tables = _step_tables(units, 1 << max(0, most - 1).bit_length(), context.device)
    changed = (training.weights, moments, training.state, training.loss_sums, training.loss_weights, counter)
    constant = (training.received, tuple(training.update), training.keys, tables)
    leaves, spec = tree_flatten((changed, constant))
    values = [TENSOR if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    length = executor.length_of([unit.batches for unit in units] + [NO_ROWS] * ragged)  # of all steps: one program
    step = _ProgramStep(executor, gradients_of, ragged, values, spec, length)
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    if executor.observer.is_active:
        for number in range(most):
            step(*tensors, callback=_callback(executor, units, number))
    else:
        groups = [training.weights, *training.state.values(), *training.received.values()]
        groups += [group for own in moments for group in own.values()]
        names = tuple(tuple(group) for group in groups)
        key = (context.index, ragged, length, names, tuple((t.shape, t.dtype) for t in tensors))
        tensors = executor.compiled.program(key, lambda: step).run(tensors, most)
    (weights, moments, state, sums, loss_weights, _), _ = step.unflatten(tensors)
    return TrainingState(weights, state, sums, loss_weights, training.received, training.update, training.keys), moments


class StepTables(NamedTuple):
    """The inputs that differ between steps, for S steps: the program reads its row."""

    rows: Tensor  # rows of the training split, int64 [S, n, B]
    positions: Tensor | None  # positions of the rows among the clients' own, int64 [S, n, B]
    active: Tensor  # whether each client has not finished, bool [S, n]
    rates: Tensor  # learning rates, float32 [S, n]


def _step_tables(units: list[TrainingUnit], length: int, device: torch.device) -> StepTables:
    rows, positions = _batch_tables(units, length, device)
    active = np.arange(length)[:, None] < np.array([unit.num_steps for unit in units])
    rates = np.zeros((length, len(units)), dtype=np.float32)
    for k, unit in enumerate(units):
        rates[: unit.num_steps, k] = unit.learning_rates
    return StepTables(rows, positions, to_device(device, active), to_device(device, rates))


def _batch_tables(units: list[TrainingUnit], steps: int, device: torch.device) -> tuple[Tensor, Tensor | None]:
    """Return the rows of the batches and their positions, if needed: int64 [steps, n, B]; −1 is padding."""
    rows = _side_by_side([unit.batches for unit in units], steps, -1)
    positions = [unit.positions for unit in units if unit.positions is not None]
    positions_table = to_device(device, _side_by_side(positions, steps, 0)) if positions else None
    return to_device(device, rows), positions_table


def _side_by_side(tables: list[np.ndarray], steps: int, padding: int) -> np.ndarray:
    stacked = np.full((steps, len(tables), tables[0].shape[1]), padding, dtype=np.int64)
    for k, table in enumerate(tables):
        stacked[: len(table), k] = table
    return stacked


@dataclass(frozen=True)
class _ProgramStep:
    """A local step as a function of a list of tensors, which reads its inputs from tables by a step counter."""

    executor: Executor
    gradients_of: GradientFunction
    ragged: bool
    leaves: list[object]  # of the tree of arguments; `TENSOR` for each tensor
    spec: TreeSpec
    length: int | None  # tokens of an example

    def unflatten(self, tensors: Sequence[Tensor]) -> Any:
        """Rebuild the tree of arguments with these tensors."""
        remaining = iter(tensors)
        return tree_unflatten([next(remaining) if leaf is TENSOR else leaf for leaf in self.leaves], self.spec)

    def __call__(self, *tensors: Tensor, callback: StepCallback | None = None) -> list[Tensor]:
        """Take one step; returns the tensors that it changed in place."""
        changed, (received, update, keys, tables) = self.unflatten(tensors)
        weights, moments, state, loss_sums, loss_weights, counter = changed
        context = self.executor.context
        training = TrainingState(dict(weights), state, loss_sums, loss_weights, received, ClientUpdate(*update), keys)
        stepped = _stepped_tensors(context.phase.algorithm.micro_steps(), weights)
        optimizers = [
            (micro, TensorOptimizer(context.phase.local, own, saved, self.ragged, micro.active is not None))
            for (micro, own), saved in zip(stepped, moments, strict=True)
        ]

        def current(table: Tensor) -> Tensor:
            return table.index_select(0, counter)[0]

        positions = None if tables.positions is None else current(tables.positions)
        batch = self.executor.batch(current(tables.rows), positions, length=self.length)
        step = LocalStep(counter[0], batch, current(tables.active), current(tables.rates), callback)
        local_step(context, self.gradients_of, optimizers, training, step)
        loss_sums.copy_(training.loss_sums)
        loss_weights.copy_(training.loss_weights)
        for key, group in training.state.items():
            for name, tensor in group.items():
                if state[key][name] is not tensor:
                    state[key][name].copy_(tensor)
        counter.add_(1)
        return [leaf for leaf in tree_flatten(changed)[0] if isinstance(leaf, Tensor)]
