"""The contracts of server optimizers and learning-rate schedules."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from simfl.optimizers.schedules import Schedule
from simfl.optimizers.server import ServerOptimizer
from simfl.protocol import State, Weights


def check_server_optimizer(optimizer: ServerOptimizer) -> Iterator[str]:
    """Yield one line for each rule that a server optimizer breaks, tried on three steps."""
    generator = torch.Generator().manual_seed(0)
    weights: Weights = {"a": torch.randn(4, 3, generator=generator), "b": torch.randn(5, generator=generator)}
    weights["counter"] = torch.tensor([3])  # has no delta
    state: State = {}
    for step in range(3):
        delta = {name: torch.randn(weights[name].shape, generator=generator) for name in ("a", "b")}
        copies = _clone(weights), _clone(delta), {key: _clone(group) for key, group in state.items()}
        moved, new_state = optimizer.step(weights, delta, state)
        yield from _check_step(step, (weights, delta, state), copies, moved)
        if not _equal(optimizer.step(*copies)[0], moved):
            yield f"step {step}: two steps from equal arguments differ"
        weights, state = moved, new_state
    if optimizer.step({}, {}, {})[0] != {}:
        yield "a step without tensors does not return {}"
    num_moments = sum(1 for group in state.values() for t in group.values() if t.shape == weights["a"].shape)
    if num_moments != optimizer.num_moments:
        yield f"has {num_moments} state tensors per stepped tensor; declare num_moments: ClassVar[int] = {num_moments}"
    faster = optimizer.at(0, 10)
    if not isinstance(faster, type(optimizer)):
        yield "`at` does not return an optimizer of its class"


def _check_step(
    step: int, given: tuple[Weights, Weights, State], copies: tuple[Weights, Weights, State], moved: Weights
) -> Iterator[str]:
    weights, delta, state = given
    if not (_equal(weights, copies[0]) and _equal(delta, copies[1])):
        yield f"step {step}: changes weights or delta in place"
    if state.keys() != copies[2].keys() or not all(_equal(state[key], copies[2][key]) for key in state):
        yield f"step {step}: changes its state in place"
    if list(moved) != list(weights):
        yield f"step {step}: returns the tensors {list(moved)}; must be {list(weights)}"
        return
    if not torch.equal(moved["counter"], weights["counter"]):
        yield f"step {step}: changes a tensor that has no delta"
    for name in delta:
        if moved[name].dtype != weights[name].dtype or not torch.isfinite(moved[name]).all():
            yield f"step {step}: {name} is {moved[name].dtype} or not finite; must be finite {weights[name].dtype}"


def check_schedule(schedule: Schedule) -> Iterator[str]:
    """Yield one line for each rule that a schedule breaks."""
    for steps in (0, 1, 7):
        for round in (0, 4, 9):
            factors = schedule.factors(10, round, steps)
            if factors.shape != (steps,) or factors.dtype != np.float64:
                yield f"factors(10, {round}, {steps}) is {factors.dtype} {factors.shape}; must be float64 ({steps},)"
            elif not (np.isfinite(factors).all() and (factors >= 0).all()):
                yield f"factors(10, {round}, {steps}) has a negative or non-finite factor"


def _clone(tensors: Weights) -> Weights:
    return {name: tensor.clone() for name, tensor in tensors.items()}


def _equal(a: Weights, b: Weights) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
