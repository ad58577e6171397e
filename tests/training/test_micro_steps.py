"""Micro-steps that depend on earlier gradients (`at`) or skip local steps (`active`), in both execution modes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from fakes import experiment, run
from fakes import model as final_model
from torch import Tensor

from simfl.algorithms.base import Algorithm
from simfl.config.rules import check, violations
from simfl.errors import ConfigError
from simfl.experiment import Experiment, Privacy
from simfl.optimizers.local import LocalOptimizer
from simfl.protocol import AggregatedUpdates, ClientUpdate, MicroStep, Parts, Server, State, Task, Weights
from simfl.runs.results import Run
from simfl.weights import norm


@dataclass(frozen=True)
class Sharp(Algorithm):
    """FedSAM: the gradient at w + rho·g/‖g‖, where g is the gradient at w."""

    rho: float = 0.05

    def micro_steps(self) -> tuple[MicroStep, ...]:
        first = MicroStep(forwards=("student",), loss=self.loss, steps=False)
        return (first, MicroStep(forwards=("student",), loss=self.loss, at=self.perturbed))

    def perturbed(
        self, trained: Weights, gradients: tuple[Weights, ...], state: State, update: ClientUpdate
    ) -> Weights:
        (g,) = gradients
        scale = self.rho / norm(g).clamp_min(1e-12)
        return {name: trained[name] + scale * g[name] for name in g}


@dataclass(frozen=True)
class Alternating(Algorithm):
    """The head is trained in the first `first` local steps, the rest of the model afterwards."""

    first: int = 2

    def micro_steps(self) -> tuple[MicroStep, ...]:
        def head(update: ClientUpdate) -> Tensor:
            return (update.step < self.first).to(torch.float32)

        def body(update: ClientUpdate) -> Tensor:
            return 1.0 - head(update)

        return (
            MicroStep(forwards=("student",), loss=self.loss, trains=("head.*",), active=head),
            MicroStep(forwards=("student",), loss=self.loss, excludes=("head.*",), active=body),
        )


@dataclass(frozen=True)
class Late(Algorithm):
    """The optimizer steps in the second half of each client's local steps alone."""

    def micro_steps(self) -> tuple[MicroStep, ...]:
        def late(update: ClientUpdate) -> Tensor:
            return update.step * 2 >= update.num_steps

        return (MicroStep(forwards=("student",), loss=self.loss, active=late),)


@dataclass(frozen=True)
class Reporting(Algorithm):
    """FedAvg that logs the norm of the mean delta, and the number of classes that its server was told."""

    def init_server(self, weights: Weights, task: Task) -> State:
        return {"task": {"classes": torch.tensor(float(task.num_classes or -1))}}

    def update_state(self, sent: Parts, trained: Weights, received: Parts, state: State, update: ClientUpdate) -> State:
        assert float(update.step) == float(update.num_steps) > 0
        return state

    def metrics(self, server: Server, means: AggregatedUpdates) -> Mapping[str, float | Tensor]:
        return {"norm": norm(means.means["weights"]), "classes": server.state["task"]["classes"]}


@dataclass(frozen=True)
class Undeclared(Algorithm):
    """FedAvg that uploads a part which `reduce` does not name."""

    def upload(self, trained: Weights, received: Parts, state: State, update: ClientUpdate) -> Parts:
        return super().upload(trained, received, state, update) | {"more": {"one": torch.ones(1)}}


ADAM = LocalOptimizer("adam", {})
MOMENTUM = LocalOptimizer("sgd", {"momentum": 0.9})


def in_mode(mode: Literal["sequential", "vectorized"], folder: Path, **settings: Any) -> Weights:
    given = experiment(rounds=2, **settings)
    execution = replace(given.execution, mode=mode, clients_per_batch=4)
    run(replace(given, execution=execution), folder / mode)
    return final_model(folder / mode)


def distance(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> float:
    return max(float((a[name] - b[name]).abs().max()) for name in a)


@pytest.mark.parametrize("optimizer", [LocalOptimizer("sgd", {}), MOMENTUM, ADAM], ids=lambda one: str(one.settings))
@pytest.mark.parametrize("algorithm", [Sharp(), Alternating(), Late()], ids=lambda one: type(one).__name__)
def test_both_modes_agree(algorithm: Algorithm, optimizer: LocalOptimizer, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"algorithm": algorithm, "optimizer": optimizer, "learning_rate": 0.01}
    one, other = (in_mode(mode, tmp_path, **settings) for mode in ("sequential", "vectorized"))
    assert distance(one, other) < 1e-6


def test_fedsam_with_rho_zero_is_fedavg(tmp_path: Path) -> None:
    fedavg = in_mode("sequential", tmp_path / "fedavg", algorithm=Algorithm())
    assert distance(in_mode("sequential", tmp_path / "zero", algorithm=Sharp(rho=0.0)), fedavg) == 0.0
    assert distance(in_mode("sequential", tmp_path / "sharp", algorithm=Sharp(rho=0.5)), fedavg) > 1e-4


def test_a_micro_step_that_is_never_active_moves_nothing(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"optimizer": LocalOptimizer("adamw", {"weight_decay": 0.5}), "learning_rate": 0.01}
    never = in_mode("sequential", tmp_path, algorithm=Alternating(first=1000), **settings)
    start = in_mode(
        "sequential", tmp_path / "still", algorithm=Alternating(first=1000), **settings | {"learning_rate": 1e-30}
    )
    body = [name for name in never if not name.startswith("head.")]
    assert body
    assert all(torch.equal(never[name], start[name]) for name in body)
    assert not all(torch.equal(never[name], start[name]) for name in never)


def test_metrics_are_logged_per_round_and_the_server_knows_the_task(tmp_path: Path) -> None:
    given = experiment(rounds=2, algorithm=Reporting())
    run(given, tmp_path / "run")
    rounds = Run(tmp_path / "run").table("rounds").to_pylist()
    assert all(row["metric:norm"] > 0 for row in rounds)
    assert {row["metric:classes"] for row in rounds} == {5.0}


@pytest.mark.parametrize("mode", ["sequential", "vectorized"])
def test_an_undeclared_part_is_refused(mode: Literal["sequential", "vectorized"], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"phases\.0\.algorithm: Undeclared uploads the part 'more'.*weights"):
        in_mode(mode, tmp_path, algorithm=Undeclared())


@pytest.mark.parametrize("algorithm", [Sharp(), Late()], ids=lambda one: type(one).__name__)
def test_data_parallel_refuses_them(algorithm: Algorithm) -> None:
    given: Experiment = experiment(algorithm=algorithm)
    given = replace(given, execution=replace(given.execution, data_parallel=2))
    with pytest.raises(ConfigError, match="data_parallel"):
        check(given)


def test_record_privacy_refuses_gated_steps() -> None:
    privacy = Privacy(unit="record", clip=1.0, noise_multiplier=1.0)
    given = replace(experiment(algorithm=Late(), weighting="uniform", poisson=0.5), privacy=privacy)
    assert any("steps per batch" in line for line in violations(given))
