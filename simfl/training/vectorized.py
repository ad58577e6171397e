"""A cohort as one program: n clients side by side, a step of all of them at once (see `cohort.gradients`).

On a CPU, and where the optimizer has no form of tensors alone, each step is run as it is written. On a GPU it is a
program of tensors (see `cohort.program`). Batches are padded here, and padding would enter the statistics of
normalisation over a batch: such models are trained one by one.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from simfl.models.grouped_layers import grouped_forward, ungrouped_params
from simfl.protocol import ClientUpdate, Parts, State, Weights
from simfl.stacking import select_namespace, to_device
from simfl.training import gradients
from simfl.training import tensor_optimizer as tensor_stepper
from simfl.training.compiled import StepTables
from simfl.training.context import PhaseContext, TrainingResult, TrainingUnit
from simfl.training.gradients import Gradients
from simfl.training.observer import Observer
from simfl.training.optimizer_step import steppers_of
from simfl.training.step import Work, local_step
from simfl.weights import select_names

SMALL = 1 << 17  # values of a model


def pays_on_cpu(module: nn.Module, trained: tuple[str, ...]) -> bool:
    """Whether a CPU trains clients side by side faster than one by one: where a local step is bound by its overhead.

    Perceptrons with batches of 10, cohorts of 16: 0.4 of the loop's time at 50,000 values, 0.6 at 190,000, and 1.5
    times it at 1,100,000, where the copies no longer fit the cache. Grouped convolutions are slow on CPUs.
    """
    values = sum(parameter.numel() for parameter in module.parameters())
    convolves = any(isinstance(layer, (nn.Conv1d, nn.Conv2d, nn.Conv3d)) for layer in module.modules())
    return values <= SMALL and not convolves and not ungrouped_params(module, trained)


def train(
    stage: PhaseContext,
    items: list[TrainingUnit],
    start: Weights,
    buffers: Weights,
    received: Parts,
    state: State,
    visit: ClientUpdate,
    kept: list[State],
) -> TrainingResult:
    """Train all items; `start` is stepped in place. `kept`: what each client remembers."""
    n, most = len(items), max(item.steps for item in items)
    nothing = torch.zeros(n, device=stage.device)
    keys = to_device(stage.device, np.array([item.key for item in items], dtype=np.int64))
    work = Work(start, state, nothing, nothing.clone(), received, visit, keys)
    use_groups = gradients.is_grouped(stage)
    gradients_of = gradients.grouped if use_groups else gradients.stacked
    with ExitStack() as stack:
        for network in [stage.network, stage.mentor] if use_groups else []:
            if network is not None:
                stack.enter_context(grouped_forward(network.owners))
        train_them = _as_written if stage.programs is None else _as_program
        work, optimizer = train_them(stage, gradients_of, items, work, kept, most)
    return TrainingResult(work.weights, buffers, work.sums, work.counts, work.state, optimizer)


def _as_written(
    stage: PhaseContext, gradients_of: Gradients, items: list[TrainingUnit], work: Work, kept: list[State], most: int
) -> tuple[Work, list[State]]:
    """Every operation by Python, with any optimizer, and with the observer told of each step."""
    steppers = steppers_of(stage, work.weights, kept)
    rows, places = _tables(items, most, stage.device)
    rates = np.zeros((most, len(items)))
    for k, item in enumerate(items):
        rates[: item.steps, k] = item.rates
    for step in range(most):
        batch = stage.batch(rows[step], None if places is None else places[step])
        hearing = partial(_tell, stage.observer, items, step)
        active = [step < item.steps for item in items]
        local_step(stage, gradients_of, steppers, work, batch, step, active, rates[step], hearing)
    keep = stage.phase.local.keep_optimizer
    return work, [state for _, stepper in steppers for state in stepper.states()] if keep else []


def _tell(
    observer: Observer,
    items: list[TrainingUnit],
    step: int,
    micro: int,
    task: tuple[Tensor, Tensor],
    gradients: Weights,
    weights: Weights,
) -> None:
    observer.stepped(items, step, micro, *task, gradients, weights)


def _as_program(
    stage: PhaseContext, gradients_of: Gradients, items: list[TrainingUnit], work: Work, kept: list[State], most: int
) -> tuple[Work, list[State]]:
    """As one program of tensors. StepTables are as long as the next power of two, so that few programs serve all visits."""
    assert stage.programs is not None
    n, length = len(items), 1 << max(0, most - 1).bit_length()
    rows, places = _tables(items, length, stage.device)
    active = np.arange(length)[:, None] < np.array([item.steps for item in items])
    rates = np.zeros((length, n), dtype=np.float32)
    for k, item in enumerate(items):
        rates[: item.steps, k] = item.rates
    tables = StepTables(rows, places, to_device(stage.device, active), to_device(stage.device, rates))
    micro_steps, local = stage.phase.algorithm.micro_steps(), stage.phase.local
    stepped = [select_names(work.weights, micro.trains, micro.excludes, where="algorithm") for micro in micro_steps]
    moments = []
    for number, names in enumerate(stepped):
        before = [select_namespace(memory, f"optimizer{number}") for memory in kept]
        moments.append(tensor_stepper.loaded(local, {name: work.weights[name] for name in names}, before))
    ragged = any(item.steps < most for item in items)
    heard = stage.observer.listens
    hearing = (lambda step: partial(_tell, stage.observer, items, step)) if heard else None
    work, moments = stage.programs.run(stage, gradients_of, micro_steps, work, moments, tables, most, ragged, hearing)
    if not local.keep_optimizer:
        return work, []
    return work, [
        state
        for own, names in zip(moments, stepped, strict=True)
        for state in tensor_stepper.states(own, {name: work.weights[name] for name in names}, n)
    ]


def _tables(items: list[TrainingUnit], steps: int, device: torch.device) -> tuple[Tensor, Tensor | None]:
    """Rows of the batches and, if the algorithm asks, their places: int64 [steps, n, B] each; -1 is padding."""
    rows = _side_by_side([item.batches for item in items], steps, -1)
    places = [item.places for item in items if item.places is not None]
    places_too = to_device(device, _side_by_side(places, steps, 0)) if places else None
    return to_device(device, rows), places_too


def _side_by_side(tables: list[np.ndarray], steps: int, padding: int) -> np.ndarray:
    stacked = np.full((steps, len(tables), tables[0].shape[1]), padding, dtype=np.int64)
    for k, table in enumerate(tables):
        stacked[: len(table), k] = table
    return stacked
