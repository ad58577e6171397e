"""One client at a time, eager: the reference that the other modes are held to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from simfl.protocol import Batch, ClientUpdate, MicroStep, Outputs, Parts, State, Weights
from simfl.training import data_parallel as pieces
from simfl.training import dp_records as records
from simfl.training.context import PhaseContext, TrainingResult, TrainingUnit, step_key
from simfl.training.data_parallel import SharedStepInputs
from simfl.training.optimizer_step import StackedOptimizer, steppers_of
from simfl.training.step import evaluation_point, keeps
from simfl.training.step_inputs import StepInputs, loss_of


@dataclass(frozen=True)
class Move:
    """A micro-step of this client."""

    micro: MicroStep
    stepper: StackedOptimizer
    trained: Weights  # all tensors of the client, those of `leaves` among them
    leaves: Weights  # those that are differentiated: views of what is stepped, so they follow it


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
    """Train one item, n = 1 in all arguments; `start` is stepped in place. `kept`: what the client remembers."""
    (item,), steppers = items, steppers_of(stage, start, kept)
    moves = [_move(micro, stepper, start) for micro, stepper in steppers]
    own, model = _alone(buffers), _alone(start)
    mine = {key: _alone(group) for key, group in state.items()}
    first, key = ClientUpdate(*(t[0] for t in visit)), torch.tensor(item.key, device=stage.device)
    sums = counts = torch.zeros((), device=stage.device)
    with stage.binding.swapped(own):
        for step, batch in enumerate(_batches(stage, item)):
            now = StepInputs(batch, model, received, mine, first._replace(step=first.step + step), step_key(key, step))
            task, mine = _local_step(stage, item, step, moves, now)
            sums, counts = sums + task[0], counts + task[1]
    return TrainingResult(
        weights=start,
        buffers=_stacked(own),
        sums=sums[None],
        counts=counts[None],
        state={key: _stacked(group) for key, group in mine.items()},
        optimizer=[s for _, stepper in steppers for s in stepper.states()] if stage.phase.local.keep_optimizer else [],
        private_steps=item.steps if records.hidden(stage) else 0,
    )


def _alone(tensors: Weights) -> Weights:
    """Of [1, …] the one row, as views."""
    return {name: t[0] for name, t in tensors.items()}


def _stacked(tensors: Weights) -> Weights:
    return {name: t[None] for name, t in tensors.items()}


def _move(micro: MicroStep, stepper: StackedOptimizer, start: Weights) -> Move:
    leaves = {name: t[0].detach().requires_grad_() for name, t in stepper.weights.items()}
    return Move(micro, stepper, {name: leaves.get(name, t[0]) for name, t in start.items()}, leaves)


def _batches(stage: PhaseContext, item: TrainingUnit) -> Iterator[Batch]:
    """Of every local step, without padding; nothing where pieces of it are taken apart."""
    rows = torch.from_numpy(item.batches).to(stage.device)
    places = None if item.places is None else torch.from_numpy(item.places).to(stage.device)
    for step, count in enumerate((item.batches >= 0).sum(1).tolist()):
        here = None if places is None else places[step, :count]
        yield {} if stage.pieces > 1 else stage.batch(rows[step, :count], here)


def _local_step(
    stage: PhaseContext, item: TrainingUnit, step: int, moves: list[Move], now: StepInputs
) -> tuple[tuple[Tensor, Tensor], State]:
    """Every micro-step: sum and weight of the task loss in the first, and the algorithm's state afterwards."""
    algorithm = stage.phase.algorithm
    tasks: list[tuple[Tensor, Tensor]] = []
    carried: dict[str, Outputs] = {}
    seen: list[Weights] = []
    keeps_gradients = keeps(algorithm, [move.micro for move in moves])
    for number, move in enumerate(moves):
        move = _at_point(move, tuple(seen), now)
        task, gradients = _gradients(stage, item, step, move, replace(now, trained=move.trained), carried)
        stacked = {n: g[None] for n, g in zip(move.leaves, gradients, strict=True)}
        if move.micro.steps and (move.micro.active is None or bool(move.micro.active(now.visit))):
            move.stepper.step(stacked, [True], [item.rates[step]])
        stage.observer.stepped([item], step, number, task[0][None], task[1][None], stacked, move.stepper.weights)
        if keeps_gradients:
            seen.append(dict(zip(move.leaves, gradients, strict=True)))
        del gradients, stacked  # the next ones take their place in memory, and in the cache
        carried = {name: outputs.detach() for name, outputs in carried.items()}
        tasks.append(task)
    if not algorithm.needs_after_step():
        return tasks[0], now.state
    return tasks[0], algorithm.after_step(
        carried, tuple(seen), now.batch, now.trained, now.received, now.state, now.visit
    )


def _at_point(move: Move, gradients: tuple[Weights, ...], now: StepInputs) -> Move:
    """Return the micro-step with the tensors at which its passes run."""
    if move.micro.at is None:
        return move
    current = {name: t.detach() for name, t in now.trained.items()}
    moved = evaluation_point(move.micro, current, gradients, now.state, now.visit)
    point = {name: t.detach() for name, t in {**current, **moved}.items()}
    leaves = {name: point[name].requires_grad_() for name in move.leaves}
    return replace(move, trained={**point, **leaves}, leaves=leaves)


def _gradients(
    stage: PhaseContext, item: TrainingUnit, step: int, move: Move, now: StepInputs, carried: dict[str, Outputs]
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, ...]]:
    """Sum and weight of the task loss, and the gradient of each of the leaves; outputs stay in `carried`."""
    if stage.pieces > 1:
        trained = {name: t.detach() for name, t in now.trained.items()}
        shared = SharedStepInputs(trained, tuple(move.leaves), now.received, now.state, now.visit, now.key)
        return pieces.gradients(stage, item, step, shared)
    if records.hidden(stage):
        return records.gradients(stage, move.micro, now, move.leaves, item)
    loss = loss_of(stage, move.micro, now, carried)
    (sums, weights), total = loss.task_totals(), loss.total(now.batch["mask"])
    gradients = torch.autograd.grad(total, list(move.leaves.values()), materialize_grads=True)
    return (sums.detach(), weights.detach()), gradients
