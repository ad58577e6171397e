"""One local step of n clients side by side, as a function of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from simfl.algorithms.base import Algorithm
from simfl.errors import ConfigError, nearest
from simfl.protocol import Batch, ClientUpdate, MicroStep, Outputs, Parts, State, Weights
from simfl.training.context import PhaseContext, step_key, with_task
from simfl.training.gradients import Carried, Gradients


class Steps(Protocol):
    """An optimizer over `weights`, stepped in place."""

    @property
    def weights(self) -> Weights:
        """What it steps."""

    def step(self, gradients: Weights, active: Any, rates: Any) -> None:
        """Clip and step: `active` and `rates` say of each client whether it is still at work, and how fast."""


@dataclass
class Work:
    """What n clients read and change while they train; tensors [n, …]."""

    weights: Weights  # stepped in place
    state: State
    sums: Tensor  # task loss so far
    counts: Tensor  # and its weights
    received: Parts  # the same for all
    visit: ClientUpdate
    keys: Tensor  # of dropout


class StepCallback(Protocol):
    """Who is told of every optimizer step."""

    def __call__(self, micro: int, task: tuple[Tensor, Tensor], gradients: Weights, weights: Weights) -> None: ...


def local_step(
    stage: PhaseContext,
    gradients_of: Gradients,
    steppers: Sequence[tuple[MicroStep, Steps]],
    work: Work,
    batch: Batch,
    step: int | Tensor,
    active: Any,
    rates: Any,
    hearing: StepCallback | None = None,
) -> None:
    """Every micro-step of a local step. `active` and `rates` are what the optimizers take."""
    algorithm = stage.phase.algorithm
    now = work.visit._replace(step=work.visit.step + step)
    carried: Carried = {}
    seen: list[Weights] = []
    keeps_gradients = keeps(algorithm, [micro for micro, _ in steppers])
    for number, (micro, stepper) in enumerate(steppers):
        point = work.weights
        if micro.at is not None:
            moved = torch.func.vmap(partial(evaluation_point, micro))(work.weights, tuple(seen), work.state, now)
            point = {**work.weights, **{name: t.detach() for name, t in moved.items()}}
        gradients, task, carried = gradients_of(
            stage,
            micro,
            {name: point[name] for name in stepper.weights},
            point,
            work.received,
            work.state,
            batch,
            now,
            step_key(work.keys, step),
            carried,
        )
        if micro.steps:
            stepper.step(gradients, _stepping(micro, now, active), rates)
        if hearing is not None:
            hearing(number, task, gradients, stepper.weights)
        if keeps_gradients:
            seen.append(gradients)
        del gradients  # the next ones take their place in memory, and in the cache
        if number == 0:
            work.sums, work.counts = work.sums + task[0], work.counts + task[1]
    if algorithm.needs_after_step():
        work.state = _observed(stage, carried, tuple(seen), batch, work, now, active)


def keeps(algorithm: Algorithm, micro_steps: Sequence[MicroStep]) -> bool:
    """Return whether the gradients of a local step are kept until its end."""
    return algorithm.needs_after_step() or any(micro.at is not None for micro in micro_steps)


def evaluation_point(
    micro: MicroStep, trained: Weights, gradients: tuple[Weights, ...], state: State, update: ClientUpdate
) -> Weights:
    """Return the weights that `MicroStep.at` moves for one client; ConfigError if it names an unknown tensor."""
    assert micro.at is not None
    moved = micro.at(trained, gradients, state, update)
    for name in moved.keys() - trained.keys():
        raise ConfigError(
            f"algorithm: MicroStep.at returned {name!r}, which is no trained tensor; {nearest(name, trained)}"
        )
    return moved


def _stepping(micro: MicroStep, update: ClientUpdate, active: Any) -> Any:
    """Return which clients the optimizer steps, in the form of `active`."""
    if micro.active is None:
        return active
    gates = torch.func.vmap(micro.active)(update) != 0
    if isinstance(active, Tensor):
        return active & gates
    return [on and gate for on, gate in zip(active, gates.tolist(), strict=True)]


def _observed(
    stage: PhaseContext,
    carried: Carried,
    gradients: tuple[Weights, ...],
    batch: Batch,
    work: Work,
    visit: ClientUpdate,
    active: list[bool] | Tensor,
) -> State:
    """The algorithm's state after a step of each client that is still at work."""
    received = work.received

    def client(
        fields: Carried,
        gradients: tuple[Weights, ...],
        batch: Batch,
        trained: Weights,
        state: State,
        visit: ClientUpdate,
    ) -> State:
        outputs = {name: with_task(stage, Outputs(**tensors), batch) for name, tensors in fields.items()}
        return stage.phase.algorithm.after_step(outputs, gradients, batch, trained, received, state, visit)

    after = torch.func.vmap(client)(carried, gradients, batch, work.weights, work.state, visit)
    working = active if isinstance(active, Tensor) else torch.tensor(active, device=stage.device)

    def kept(new: Tensor, old: Tensor) -> Tensor:
        return torch.where(working.reshape(-1, *[1] * (old.dim() - 1)), new, old)

    return {key: {name: kept(after[key][name], t) for name, t in group.items()} for key, group in work.state.items()}
