"""The way of training that is chosen when an experiment leaves it open."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from simfl.data.benchmarks.prototypes import Prototypes
from simfl.data.partition.partitioners import Iid
from simfl.experiment import Experiment, Local, Phase
from simfl.models.base import Model
from simfl.models.cnn import Cnn
from simfl.models.mlp import Mlp
from simfl.objectives.classification import Classification
from simfl.optimizers.local import LocalOptimizer
from simfl.run_context import RunContext
from simfl.runs.manifest import RunIdentity
from simfl.session.prepare import identity_of


def identity(
    folder: Path,
    model: Model,
    sampled: int,
    device: str = "cpu",
    mode: Any = "auto",
    optimizer: str = "sgd",
) -> RunIdentity:
    phase = Phase(Classification(), Local(LocalOptimizer(optimizer), 0.1), rounds=1, clients_per_round=sampled)
    data = Prototypes(examples=200, classes=4, shape=(1, 6, 6))
    experiment = Experiment("auto", data, Iid(clients=100), model, (phase,))
    experiment = replace(experiment, execution=replace(experiment.execution, mode=mode))
    return identity_of(experiment, RunContext(experiment, folder), 100, device)


def chosen(folder: Path, model: Model, sampled: int, device: str = "cpu", mode: Any = "auto") -> tuple[object, object]:
    found = identity(folder, model, sampled, device, mode)
    return found.mode, found.clients_per_batch


@pytest.mark.parametrize(("model", "sampled", "device", "mode"), [
    (Mlp(hidden_sizes=(8,)), 40, "cpu", "vectorized"),
    (Mlp(hidden_sizes=(8,)), 4, "cpu", "sequential"),  # one cohort would leave all workers but one idle
    (Mlp(hidden_sizes=(400, 400)), 40, "cpu", "sequential"),  # 177,000 values: 16 copies do not fit the cache
    (Cnn(channels=(2, 2), hidden=4), 40, "cpu", "sequential"),  # grouped convolutions are slow
    (Cnn(channels=(2, 2), hidden=4), 4, "cuda", "vectorized"),
])  # fmt: skip
def test_a_cpu_trains_side_by_side_where_a_step_is_bound_by_its_overhead(tmp_path, model, sampled, device, mode):
    assert chosen(tmp_path, model, sampled, device)[0] == mode


def test_a_way_that_is_asked_for_is_taken(tmp_path):
    assert chosen(tmp_path, Mlp(hidden_sizes=(8,)), 40, mode="sequential") == ("sequential", 2)
    assert chosen(tmp_path, Mlp(hidden_sizes=(8,)), 40, mode="vectorized") == ("vectorized", 16)


def test_a_gpu_says_how_steps_are_run_and_in_what_it_multiplies(tmp_path):
    found = identity(tmp_path, Mlp(hidden_sizes=(8,)), 40, "cuda")
    assert (found.program, found.products) == ("graph", "tf32")
    assert identity(tmp_path, Mlp(hidden_sizes=(8,)), 40, "cuda", mode="sequential").program == "eager"
    assert identity(tmp_path, Mlp(hidden_sizes=(8,)), 40, "cuda", optimizer="adafactor").program == "eager"
    assert identity(tmp_path, Mlp(hidden_sizes=(8,)), 40).program is None
