"""Execution modes tried on a small round: accepted if they end where `sequential` does, excluded otherwise."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fakes import experiment
from training.test_modes import small

from simfl.autotune import trial
from simfl.autotune.probe import ProbeRequest, ProbeResult, probe
from simfl.autotune.trial import batches_per_worker, cut, gap
from simfl.experiment import Experiment, Privacy
from simfl.protocol import Parts
from simfl.rounds import plan_round
from simfl.run_context import RunContext
from simfl.runs.snapshot import Snapshot
from simfl.runtime.worker import Worker, WorkerConfig
from simfl.session.prepare import partition_of
from simfl.training import client_updates, compiled
from simfl.training.plan import ClientPlan, ExecutionMode


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure few passes, since their length does not matter here."""
    monkeypatch.setattr(trial, "ENOUGH_SECONDS", 0.0)


@dataclass
class Round:
    """The first round of an experiment as a worker is asked about it: seven clients, four per batch."""

    worker: Worker
    request: ProbeRequest
    received: Parts

    def probe(self, **changes: Any) -> ProbeResult:
        """Probe a changed request."""
        return probe(self.worker.executors[0], self.worker.store, replace(self.request, **changes), self.received)


def first_round(case: Experiment, folder: Path) -> Round:
    run_context = RunContext(case, folder)
    partition, _ = partition_of(run_context)
    config = WorkerConfig(case, folder, folder / "client_states", len(partition), noise_multiplier=0.5)
    worker = Worker(config, run_context)
    worker.begin(0, {})
    context = worker.executors[0].context
    plan = plan_round(context, partition, Snapshot().enter_phase(context))
    local = context.phase.local
    clients = sorted(plan.client_plans, key=lambda client: (client.num_steps(local), client.client))
    request = ProbeRequest(tuple(clients), 0, ("eager",), 4, False, 1, 10**6, tolerance=0.02)
    return Round(worker, request, plan.received)


def execution_modes(found: ProbeResult) -> list[tuple[str, int]]:
    return [(one.execution_mode.mode, one.execution_mode.clients_per_batch) for one in found.trials]


def replace_vectorized(monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
    """Replace the vectorized mode by `change(units, train)`, where `train()` returns its result."""
    train = client_updates.MODES["vectorized"]

    def changed(executor: Any, inputs: Any) -> Any:
        return change(inputs.units, lambda: train(executor, inputs))

    monkeypatch.setitem(client_updates.MODES, "vectorized", changed)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("mlp", "scaffold"),
        pytest.param("cnn", "moon", marks=pytest.mark.slow),
        pytest.param("mlp", "ditto", marks=pytest.mark.slow),
        pytest.param("mlp", "fednova", marks=pytest.mark.slow),
    ],
)
def test_both_modes_agree_and_are_timed(tmp_path, kind, name):
    found = first_round(small(kind, name), tmp_path).probe()
    assert execution_modes(found)[:2] == [("sequential", 1), ("vectorized", 4)]
    assert [one.why for one in found.trials] == [""] * len(found.trials)
    assert all(one.gap < 1e-4 for one in found.trials[1:])
    assert all(one.step > 0 and one.round > one.step for one in found.trials)
    assert 0 < found.seconds < 60


@pytest.mark.parametrize(("kind", "name"), [("mlp", "fedavg"), pytest.param("vt5", "feddat", marks=pytest.mark.slow)])
def test_compiled_steps_are_tried(tmp_path, monkeypatch, kind, name):
    """The traced step runs instead of the compiled one, since not every machine has a compiler."""
    monkeypatch.setattr(compiled, "compile_step", compiled.trace_step)
    one = first_round(small(kind, name), tmp_path)
    found = one.probe(programs=("compiled", "eager"), clients_per_batch=2, fixed=True, seconds=1e3)
    assert [(one.execution_mode.program, one.why) for one in found.trials[1:]] == [("compiled", ""), ("eager", "")]
    assert all(one.gap < 1e-3 for one in found.trials[1:])
    assert one.worker.executors[0].compiled is None


def test_privacy_units_are_compared_with_sequential_without_noise(tmp_path):
    case = experiment("fedavg", privacy=Privacy(clip=0.5, groups_per_client=2), weighting="uniform")
    found = first_round(case, tmp_path).probe(fixed=True)
    assert [one.why for one in found.trials] == ["", ""]
    assert found.trials[1].gap < 1e-4


def test_a_mode_whose_clients_end_elsewhere_is_excluded(tmp_path, monkeypatch):
    def shifted(units, train):
        trained = train()
        return replace(trained, weights={name: t + 0.05 for name, t in trained.weights.items()})

    replace_vectorized(monkeypatch, shifted)
    found = first_round(experiment(), tmp_path).probe()
    assert execution_modes(found) == [("sequential", 1), ("vectorized", 4)]
    assert "of their path away from those of sequential, more than 0.02" in found.trials[1].why
    assert found.trials[1].gap > 0.02
    assert found.trials[1].round is None


def test_a_mode_with_nan_weights_is_excluded(tmp_path, monkeypatch):
    def broken(units, train):
        trained = train()
        return replace(trained, weights={name: t * torch.nan for name, t in trained.weights.items()})

    replace_vectorized(monkeypatch, broken)
    assert "its clients end nan of their path" in first_round(experiment(), tmp_path).probe().trials[1].why


@pytest.mark.slow
def test_a_batch_that_does_not_fit_into_memory_is_halved(tmp_path, monkeypatch):
    def starved(units, train):
        if len(units) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")
        return train()

    replace_vectorized(monkeypatch, starved)
    found = first_round(experiment(), tmp_path).probe()
    assert execution_modes(found) == [("sequential", 1), ("vectorized", 4), ("vectorized", 2), ("vectorized", 1)]
    assert [one.out_of_memory for one in found.trials] == [False, True, True, False]
    assert found.trials[1].why == "OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB"
    assert found.trials[3].why == ""


def test_a_requested_batch_size_is_not_halved(tmp_path, monkeypatch):
    def starved(units, train):
        raise MemoryError

    replace_vectorized(monkeypatch, starved)
    assert execution_modes(first_round(experiment(), tmp_path).probe(fixed=True)) == [
        ("sequential", 1),
        ("vectorized", 4),
    ]


def test_a_failing_mode_is_excluded_with_its_error(tmp_path, monkeypatch):
    def failing(units, train):
        raise RuntimeError("Batching rule not implemented for aten::nothing\nand more")

    replace_vectorized(monkeypatch, failing)
    found = first_round(experiment(), tmp_path).probe()
    assert [t.why for t in found.trials] == ["", "RuntimeError: Batching rule not implemented for aten::nothing"]


def test_no_mode_is_tried_if_sequential_fails(tmp_path, monkeypatch):
    def failing(*_):
        raise ZeroDivisionError("the client's own words")

    monkeypatch.setitem(client_updates.MODES, "sequential", failing)
    found = first_round(experiment(), tmp_path).probe()
    assert len(found.trials) == 1
    assert found.trials[0].why.startswith("ClientError: client ")


def test_without_time_only_the_mode_of_the_rules_is_tried(tmp_path):
    found = first_round(experiment(), tmp_path).probe(seconds=0.0)
    assert execution_modes(found) == [("sequential", 1), ("vectorized", 4), ("vectorized", 8), ("vectorized", 2)]
    assert [bool(one.round) for one in found.trials] == [True, True, False, False]
    assert found.trials[2].why == "not tried: it may exceed the time left for trials, or cost more than it gains"


def test_few_modes_are_tried_for_a_short_phase(tmp_path):
    found = first_round(experiment(), tmp_path).probe(rounds=1)
    assert [bool(one.round) for one in found.trials] == [True, True, False, False]


def test_a_probe_has_no_side_effects(tmp_path):
    one = first_round(experiment("scaffold", personal_params=("head.*",)), tmp_path)
    executor = one.worker.executors[0]
    module = executor.context.network.module
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # noqa: NPY002
    weights = {name: tensor.clone() for name, tensor in module.named_parameters()}
    sent = {name: tensor.clone() for name, tensor in one.received["weights"].items()}
    one.probe()
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1:] == (np.random.get_state()[1].tolist(), random.getstate())  # noqa: NPY002
    assert all(torch.equal(weights[name], tensor) for name, tensor in module.named_parameters())
    assert all(torch.equal(sent[name], tensor) for name, tensor in one.received["weights"].items())
    assert list((tmp_path / "client_states").iterdir()) == []
    assert executor.drawn_units == {}


def test_a_client_plan_is_cut_to_a_number_of_steps_per_unit():
    """Batches of 4: 9, 0 and 3 examples are 3, 0 and 1 steps."""
    local = replace(experiment().phases[0].local, batch_size=4)
    plan = ClientPlan(7, 1.0, tuple(np.arange(n) for n in (9, 0, 3)), "", unit_names=(5, 6, 8))
    short = cut(plan, local, 2)
    assert [len(rows) for rows in short.units] == [9, 3]
    assert (short.unit_names, short.steps_per_unit, short.num_steps(local)) == ((5, 8), 2, 4)
    assert cut(plan, local, 3).steps_per_unit is None
    assert cut(replace(plan, steps_per_unit=9), local, 3).steps_per_unit == 3


@pytest.mark.parametrize(("count", "n", "workers", "expected"), [
    (50, 50, 1, 1.0),
    (100, 64, 1, 1.5625),  # 64 and 36, which count by their share
    (50, 16, 4, 1.0),  # four cohorts, one on each
    (50, 8, 4, 2.0),  # seven cohorts on four
    (7, 1, 3, 3.0),
])  # fmt: skip
def test_batches_per_worker(count, n, workers, expected):
    assert batches_per_worker(count, n, workers) == expected


def test_the_gap_is_relative_to_the_path_from_the_start():
    """A path of 5 from (0, 0) to (3, 4), ended 0.5 away; the rounding of the weights adds 2e-5 of 5."""
    start, reference, end = ({"w": torch.tensor(value)} for value in ([0.0, 0.0], [3.0, 4.0], [3.0, 4.5]))
    assert gap(end, reference, start) == pytest.approx(0.5 / 5.0001)
    assert gap(reference, reference, reference) == 0.0


@pytest.mark.gpu
def test_on_a_gpu_captured_and_eager_steps_are_tried(tmp_path):
    case = small("cnn", "scaffold")
    setting = RunContext(case, tmp_path, torch.device("cuda"))
    one = first_round(case, tmp_path)
    worker = Worker(WorkerConfig(case, tmp_path, tmp_path / "gpu", 10, "cuda"), setting)
    worker.begin(0, {})
    found = worker.probe(replace(one.request, programs=("graph", "eager"), tolerance=0.2), one.received)
    assert [one.why for one in found.trials] == [""] * len(found.trials)
    assert {one.execution_mode.program for one in found.trials} == {"graph", "eager"}
    assert all(one.memory > 0 for one in found.trials)
    assert found.trials[1].execution_mode == ExecutionMode("vectorized", 4, "graph")
    assert found.clock.seconds["probe"] > 0
