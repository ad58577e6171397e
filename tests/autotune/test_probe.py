"""Manners of training tried on a small round: who ends where `sequential` does, and what becomes of those that do not."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from fakes import experiment
from training.test_modes import small

from simfl import simulation
from simfl.autotune import trial
from simfl.autotune.probe import ProbeRequest, ProbeResult, probe
from simfl.autotune.trial import cut, gap, turns
from simfl.experiment import Experiment, Privacy
from simfl.protocol import Parts
from simfl.run_context import RunContext
from simfl.runs.snapshot import Snapshot
from simfl.runtime.worker import Worker, WorkerConfig
from simfl.session.prepare import partition_of
from simfl.training import client_updates as group
from simfl.training import compiled as program
from simfl.training.plan import ClientPlan, ExecutionMode


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few passes: their length is no matter here."""
    monkeypatch.setattr(trial, "ENOUGH", 0.0)


@dataclass
class Round:
    """The first round of an experiment as a worker is asked about it: seven clients, four of them side by side."""

    worker: Worker
    question: ProbeRequest
    received: Parts

    def tried(self, **changed: Any) -> ProbeResult:
        return probe(self.worker.stages[0], self.worker.store, replace(self.question, **changed), self.received)


def first_round(case: Experiment, folder: Path) -> Round:
    setting = RunContext(case, folder)
    partition, _ = partition_of(setting)
    worker = Worker(WorkerConfig(case, folder, folder / "client_states", len(partition), noise_multiplier=0.5), setting)
    worker.begin(0, {})
    stage, driver = worker.stages[0], SimpleNamespace(partition=partition)
    visits, (received, _, _) = simulation.outgoing(driver, stage, Snapshot().begin(stage))  # type: ignore[arg-type]
    ordered = sorted(visits, key=lambda visit: (visit.num_steps(stage.phase.local), visit.client))
    return Round(worker, ProbeRequest(tuple(ordered), 0, ("eager",), 4, False, 1, 10**6, tolerance=0.02), received)


def execution_modes(found: ProbeResult) -> list[tuple[str, int]]:
    return [(one.execution_mode.mode, one.execution_mode.clients_per_batch) for one in found.trials]


def instead(monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
    """`vectorized` does this to what it is given and to what comes out: `change(items, trained)`."""
    train = group.MODES["vectorized"]

    def changed(stage: Any, items: Any, *rest: Any) -> Any:
        return change(items, lambda: train(stage, items, *rest))

    monkeypatch.setitem(group.MODES, "vectorized", changed)


@pytest.mark.parametrize(("kind", "name"), [("mlp", "scaffold"), ("mlp", "ditto"), ("cnn", "moon"), ("mlp", "fednova")])
def test_both_ways_end_at_one_place_and_are_timed(tmp_path, kind, name):
    found = first_round(small(kind, name), tmp_path).tried()
    assert execution_modes(found)[:2] == [("sequential", 1), ("vectorized", 4)]
    assert [one.why for one in found.trials] == [""] * len(found.trials)
    assert all(one.gap < 1e-4 for one in found.trials[1:])
    assert all(one.step > 0 and one.round > one.step for one in found.trials)
    assert 0 < found.seconds < 60


@pytest.mark.parametrize(("kind", "name"), [("mlp", "fedavg"), pytest.param("vt5", "feddat", marks=pytest.mark.slow)])
def test_a_step_that_is_a_program_of_tensors_is_tried_as_one(tmp_path, monkeypatch, kind, name):
    """What the compiler is given is run as it is, since not every machine has a compiler."""
    monkeypatch.setattr(program, "compile_step", program.traced)
    one = first_round(small(kind, name), tmp_path)
    found = one.tried(programs=("compiled", "eager"), clients_per_batch=2, fixed=True, seconds=1e3)
    assert [(one.execution_mode.program, one.why) for one in found.trials[1:]] == [("compiled", ""), ("eager", "")]
    assert all(one.gap < 1e-3 for one in found.trials[1:])
    assert one.worker.stages[0].programs is None


def test_units_of_a_client_are_held_to_loop_without_their_noise(tmp_path):
    case = experiment("fedavg", privacy=Privacy(clip=0.5, groups_per_client=2), weighting="uniform")
    found = first_round(case, tmp_path).tried(fixed=True)
    assert [one.why for one in found.trials] == ["", ""]
    assert found.trials[1].gap < 1e-4


def test_clients_that_end_elsewhere_are_left_out_and_no_other_width_is_tried(tmp_path, monkeypatch):
    def shifted(items, train):
        trained = train()
        return replace(trained, weights={name: t + 0.05 for name, t in trained.weights.items()})

    instead(monkeypatch, shifted)
    found = first_round(experiment(), tmp_path).tried()
    assert execution_modes(found) == [("sequential", 1), ("vectorized", 4)]
    assert "of their way from where loop leads them, more than 0.02" in found.trials[1].why
    assert found.trials[1].gap > 0.02
    assert found.trials[1].round is None


def test_weights_that_are_no_numbers_are_left_out(tmp_path, monkeypatch):
    def broken(items, train):
        trained = train()
        return replace(trained, weights={name: t * torch.nan for name, t in trained.weights.items()})

    instead(monkeypatch, broken)
    assert "its clients end nan of their way" in first_round(experiment(), tmp_path).tried().trials[1].why


def test_what_does_not_fit_is_halved_until_it_does(tmp_path, monkeypatch):
    def starved(items, train):
        if len(items) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")
        return train()

    instead(monkeypatch, starved)
    found = first_round(experiment(), tmp_path).tried()
    assert execution_modes(found) == [("sequential", 1), ("vectorized", 4), ("vectorized", 2), ("vectorized", 1)]
    assert [one.starving for one in found.trials] == [False, True, True, False]
    assert found.trials[1].why == "OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB"
    assert found.trials[3].why == ""


def test_a_width_that_was_asked_for_is_not_halved(tmp_path, monkeypatch):
    def starved(items, train):
        raise MemoryError

    instead(monkeypatch, starved)
    assert execution_modes(first_round(experiment(), tmp_path).tried(fixed=True)) == [
        ("sequential", 1),
        ("vectorized", 4),
    ]


def test_a_way_that_fails_says_why(tmp_path, monkeypatch):
    def failing(items, train):
        raise RuntimeError("Batching rule not implemented for aten::nothing\nand more")

    instead(monkeypatch, failing)
    found = first_round(experiment(), tmp_path).tried()
    assert [t.why for t in found.trials] == ["", "RuntimeError: Batching rule not implemented for aten::nothing"]


def test_where_loop_itself_fails_nothing_else_is_tried(tmp_path, monkeypatch):
    def failing(*_):
        raise ZeroDivisionError("the client's own words")

    monkeypatch.setitem(group.MODES, "sequential", failing)
    found = first_round(experiment(), tmp_path).tried()
    assert len(found.trials) == 1
    assert found.trials[0].why.startswith("ClientError: client ")


def test_without_time_only_what_the_rules_say_is_tried(tmp_path):
    found = first_round(experiment(), tmp_path).tried(seconds=0.0)
    assert execution_modes(found) == [("sequential", 1), ("vectorized", 4), ("vectorized", 8), ("vectorized", 2)]
    assert [bool(one.round) for one in found.trials] == [True, True, False, False]
    assert found.trials[2].why == "not tried: it may take longer than is left for trying, or is worth it"


def test_for_a_short_phase_little_is_tried(tmp_path):
    found = first_round(experiment(), tmp_path).tried(rounds=1)
    assert [bool(one.round) for one in found.trials] == [True, True, False, False]


def test_a_probe_leaves_nothing_behind(tmp_path):
    one = first_round(experiment("scaffold", personal_params=("head.*",)), tmp_path)
    stage = one.worker.stages[0]
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # noqa: NPY002
    weights = {name: tensor.clone() for name, tensor in stage.module.named_parameters()}
    sent = {name: tensor.clone() for name, tensor in one.received["weights"].items()}
    one.tried()
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1:] == (np.random.get_state()[1].tolist(), random.getstate())  # noqa: NPY002
    assert all(torch.equal(weights[name], tensor) for name, tensor in stage.module.named_parameters())
    assert all(torch.equal(sent[name], tensor) for name, tensor in one.received["weights"].items())
    assert list((tmp_path / "client_states").iterdir()) == []
    assert stage.drawn == stage.drafts == {}


def test_a_visit_is_cut_to_so_many_steps_of_each_unit():
    """Batches of 4: 9, 0 and 3 examples are 3, 0 and 1 steps."""
    local = replace(experiment().phases[0].local, batch_size=4)
    visit = ClientPlan(7, 1.0, tuple(np.arange(n) for n in (9, 0, 3)), "", names=(5, 6, 8))
    short = cut(visit, local, 2)
    assert [len(rows) for rows in short.units] == [9, 3]
    assert (short.names, short.steps, short.num_steps(local)) == ((5, 8), 2, 4)
    assert cut(visit, local, 3).steps is None
    assert cut(replace(visit, steps=9), local, 3).steps == 3


@pytest.mark.parametrize(("count", "n", "workers", "expected"), [
    (50, 50, 1, 1.0),
    (100, 64, 1, 1.5625),  # 64 and 36, which take their share
    (50, 16, 4, 1.0),  # four cohorts, one on each
    (50, 8, 4, 2.0),  # seven cohorts on four
    (7, 1, 3, 3.0),
])  # fmt: skip
def test_a_round_is_so_many_cohorts_one_after_the_other(count, n, workers, expected):
    assert turns(count, n, workers) == expected


def test_a_gap_is_measured_by_the_way_from_the_start():
    """A way of 5 from (0, 0) to (3, 4), ended half a unit off; the weights' own rounding adds 2e-5 of 5."""
    start, reference, end = ({"w": torch.tensor(value)} for value in ([0.0, 0.0], [3.0, 4.0], [3.0, 4.5]))
    assert gap(end, reference, start) == pytest.approx(0.5 / 5.0001)
    assert gap(reference, reference, reference) == 0.0


@pytest.mark.gpu
def test_on_a_gpu_a_captured_step_is_tried_beside_an_eager_one(tmp_path):
    case = small("cnn", "scaffold")
    setting = RunContext(case, tmp_path, torch.device("cuda"))
    one = first_round(case, tmp_path)
    worker = Worker(WorkerConfig(case, tmp_path, tmp_path / "gpu", 10, "cuda"), setting)
    worker.begin(0, {})
    found = worker.probe(replace(one.question, programs=("graph", "eager"), tolerance=0.2), one.received)
    assert [one.why for one in found.trials] == [""] * len(found.trials)
    assert {one.execution_mode.program for one in found.trials} == {"graph", "eager"}
    assert all(one.memory > 0 for one in found.trials)
    assert found.trials[1].execution_mode == ExecutionMode("vectorized", 4, "graph")
    assert found.clock.seconds["probe"] > 0
