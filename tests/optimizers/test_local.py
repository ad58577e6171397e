"""Local optimizers: settings, and one optimizer for stacked clients against one for each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from simfl.errors import ConfigError
from simfl.experiment import Local
from simfl.optimizers.local import LocalOptimizer
from simfl.training.optimizer_step import StackedOptimizer

STACKED = ["sgd", "adam", "adamw", "adamax", "radam", "adagrad", "adadelta", "rmsprop"]
ALONE = ["nadam", "asgd", "rprop", "adafactor"]
SHAPES = {"w": (3, 4, 5), "b": (3, 4)}  # three clients


def local(name: str, **settings: Any) -> Local:
    return Local(optimizer=LocalOptimizer(name, settings), learning_rate=0.1)


def weights() -> dict[str, torch.Tensor]:
    return {name: torch.randn(shape, generator=torch.Generator().manual_seed(1)) for name, shape in SHAPES.items()}


def gradients(steps: int) -> list[dict[str, torch.Tensor]]:
    drawn = torch.Generator().manual_seed(2)
    return [{name: torch.randn(shape, generator=drawn) for name, shape in SHAPES.items()} for _ in range(steps)]


RATES = np.array([[0.1, 0.2, 0.1], [0.05, 0.1, 0.1], [0.0, 0.3, 0.1]])  # of each step and client
ACTIVE = [[True, True, True], [True, True, True], [False, True, True]]


@pytest.mark.parametrize("name", STACKED + ALONE)
def test_stacked_clients_with_different_rates_step_as_each_alone(name: str) -> None:
    settings = {"momentum": 0.9, "weight_decay": 0.01} if name == "sgd" else {}
    together = weights()
    stepper = StackedOptimizer(local(name, **settings), together, [{}, {}, {}])
    for step, gradient in enumerate(gradients(3)):
        stepper.step(gradient, ACTIVE[step], RATES[step])
    for k in range(3):
        own = {n: t[k : k + 1].clone() for n, t in weights().items()}
        alone = StackedOptimizer(local(name, **settings), own, [{}])
        for step, gradient in enumerate(gradients(3)):
            if ACTIVE[step][k]:
                alone.step({n: g[k : k + 1] for n, g in gradient.items()}, [True], [RATES[step][k]])
        assert_close({n: t[k : k + 1] for n, t in together.items()}, own)


@pytest.mark.parametrize("name", [*STACKED, *ALONE])
def test_kept_optimizer_state_continues(name: str) -> None:
    settings = {"momentum": 0.9} if name == "sgd" else {}
    whole, parts, grads = weights(), weights(), gradients(4)
    stepper = StackedOptimizer(local(name, **settings), whole, [{}, {}, {}])
    for gradient in grads:
        stepper.step(gradient, [True] * 3, [0.1] * 3)
    kept: list = [{}, {}, {}]
    for pair in (grads[:2], grads[2:]):
        stepper = StackedOptimizer(local(name, **settings), parts, kept)
        for gradient in pair:
            stepper.step(gradient, [True] * 3, [0.1] * 3)
        kept = stepper.states()
    assert_close(parts, whole)


def test_clients_with_different_step_counts_are_stepped_one_by_one() -> None:
    def state_after(steps: int) -> dict:
        own = {n: t[:1].clone() for n, t in weights().items()}
        stepper = StackedOptimizer(local("adam"), own, [{}])
        for gradient in gradients(steps):
            stepper.step({n: g[:1] for n, g in gradient.items()}, [True], [0.1])
        return stepper.states()[0]

    stepper = StackedOptimizer(local("adam"), weights(), [state_after(1), state_after(3), {}])
    assert not stepper.stacked
    stepper.step(gradients(1)[0], [True] * 3, [0.1] * 3)
    assert [int(next(iter(state["step"].values()))) for state in stepper.states()] == [2, 4, 1]


@pytest.mark.parametrize("name", STACKED)
def test_steps_of_stackable_optimizers_are_proportional_to_the_rate(name: str) -> None:
    moved = []
    for rate in (0.1, 0.2):
        tensor = torch.ones(4, dtype=torch.float64)
        optimizer = LocalOptimizer(name).build([{"params": [tensor]}], rate)
        tensor.grad = torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64)
        optimizer.step()
        moved.append(tensor - 1.0)
    assert_close(moved[1], 2.0 * moved[0])


def test_an_unknown_optimizer_or_setting_is_refused_in_one_line() -> None:
    with pytest.raises(ConfigError, match="optimizer: unknown 'shampo'; did you mean 'shampoo'"):
        LocalOptimizer("shampo")
    with pytest.raises(ConfigError, match=r"optimizer\.momentun: sgd has no such setting; did you mean 'momentum'"):
        LocalOptimizer("sgd", {"momentun": 0.9})
