"""Asynchronous runs: equal to FedAvg and to sequential SGD in their limits, exact on any workers, and after kills."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import Killed, Normalised, Stopping, Toy, experiment, model, run, scatter, traces
from fakes_asynchronous import EQUAL, QUIET, UNEQUAL, case, rows

from simfl import config
from simfl.asynchronous.staleness import Distance, Hinge, Unchanged
from simfl.debug.rerun import Rerun
from simfl.errors import ConfigError
from simfl.experiment import Evaluate
from simfl.optimizers.server import Sgd
from simfl.optimizers.sliding_window import SlidingWindow
from simfl.runs import checkpoint
from simfl.runs.results import Run
from simfl.runs.snapshot import Snapshot
from simfl.runtime.ray.remote_store import RemoteClientStore
from simfl.runtime.worker import Worker
from simfl.sweeps.fork import fork
from simfl.training.plan import ClientPlans


def test_full_buffer_and_equal_durations_are_fedavg_to_the_bit(tmp_path: Path) -> None:
    synchronous = experiment(rounds=4, participation=None, clients_per_round=7, evaluate=QUIET, keep_optimizer=False)
    run(synchronous, tmp_path / "synchronous")
    run(case(profile=EQUAL, rounds=4, concurrency=7, buffer=7), tmp_path / "asynchronous")
    first, second = model(tmp_path / "synchronous"), model(tmp_path / "asynchronous")
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert first.keys() == second.keys()
    names = ("client", "loss", "weight", "steps")
    told = [
        [{name: row[name] for name in names} for row in rows(tmp_path / kind, "clients")]
        for kind in ("synchronous", "asynchronous")
    ]
    assert told[0] == told[1]


@pytest.mark.parametrize("mode", ["vectorized", pytest.param("sequential", marks=pytest.mark.slow)])
def test_runs_match_their_plan_and_keep_the_versions_in_use(mode: str, tmp_path: Path) -> None:
    summary = run(case(mode=mode, clients_per_batch=4), tmp_path)
    assert summary["plan"] == "matches"
    found = rows(tmp_path)
    assert max(row["time:max_staleness"] for row in found) >= 2
    before = 0
    for row in found:
        ended = row["time:applied"] + row["time:late"] + row["time:lost"]
        assert before + row["time:started"] == ended + row["time:in_flight"]
        before = row["time:in_flight"]
    stored = checkpoint.latest(tmp_path / "checkpoints")
    assert stored is not None
    snapshot = Snapshot.restore(stored)
    ended = sum(row["time:applied"] + row["time:late"] + row["time:lost"] for row in found)
    assert 0 < len(snapshot.versions) <= sum(row["time:started"] for row in found) - ended
    assert max(snapshot.versions) < 5


SLOW = pytest.mark.slow
ALGORITHMS = ["fedprox", *(pytest.param(name, marks=SLOW) for name in ("fedavg", "moon", "ditto"))]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_versions_stacked_in_one_batch_train_as_one_by_one(algorithm: str, tmp_path: Path) -> None:
    for mode in ("sequential", "vectorized"):
        run(case(algorithm, mode=mode, clients_per_batch=4), tmp_path / mode)
    first, second = model(tmp_path / "sequential"), model(tmp_path / "vectorized")
    for name in first:
        torch.testing.assert_close(first[name], second[name], rtol=1e-5, atol=1e-6)
    versions: dict[int, set[int]] = {}
    for row in rows(tmp_path / "vectorized", "clients"):
        versions.setdefault(row["round"], set()).add(row["version"])
    assert max(map(len, versions.values())) > 1, "no round mixed versions"


RUNS: dict[str, dict[str, Any]] = {
    "fedbuff": {},
    "vectorized": {"mode": "vectorized", "clients_per_batch": 4},
    "fedasync": {"buffer": 1, "mix": "models", "staleness": Hinge(after=1), "server": Sgd(learning_rate=0.6)},
    "asyncfeded": {"buffer": 1, "staleness": Distance()},
    "fedfa": {"buffer": 1, "mix": "models", "staleness": Unchanged(), "server": SlidingWindow(size=3)},
    "semi-asynchronous": {"deadline": 0.05, "max_staleness": 1},
    "client state": {"algorithm": "ditto"},
    "losses": {"profile": replace(UNEQUAL, failure_rate=0.3)},
    "running statistics": {"model": Normalised(), "data": Toy(sizes=(8, 40, 16, 8, 24, 16, 8, 24, 8, 16))},
}


FAST = ("fedbuff", "losses")


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in FAST else SLOW) for name in RUNS])
def test_killed_and_resumed_runs_are_equal_to_the_bit(name: str, tmp_path: Path) -> None:
    this = case(**RUNS[name])
    config.rules.check(this)
    summary = run(this, tmp_path / "whole")
    assert summary["plan"].startswith("matches")
    for step in (2, 4):
        with pytest.raises(Killed):
            run(this, tmp_path / "killed", display=Stopping(step, error=Killed), resume=step > 2)
    run(this, tmp_path / "killed", resume=True)
    assert traces(tmp_path / "killed") == traces(tmp_path / "whole")


@pytest.mark.parametrize(
    "name", ["vectorized", *(pytest.param(name, marks=SLOW) for name in ("fedbuff", "fedasync", "client state"))]
)
def test_workers_in_any_order_change_no_bit(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    this = case(**RUNS[name])
    run(this, tmp_path / "inline")
    scatter(monkeypatch)
    run(this, tmp_path / "scattered")
    assert traces(tmp_path / "scattered") == traces(tmp_path / "inline")


@pytest.mark.slow
def test_an_interrupted_phase_is_forked_with_more_rounds_alone(tmp_path: Path) -> None:
    run(case(), tmp_path / "short")
    fork(Run(tmp_path / "short"), tmp_path / "forked", case(rounds=8), 5)
    run(case(rounds=8), tmp_path / "forked", resume=True)
    run(case(rounds=8), tmp_path / "long")
    assert traces(tmp_path / "forked")["weights_sha256"] == traces(tmp_path / "long")["weights_sha256"]
    with pytest.raises(ConfigError, match="phases: changed, but phase 0 is asynchronous and has clients in flight"):
        fork(Run(tmp_path / "short"), tmp_path / "other", case(rounds=8, buffer=2), 4)


def test_rounds_are_repeated_from_checkpoints(tmp_path: Path) -> None:
    run(case(), tmp_path / "run")
    rerun = Rerun(Run(tmp_path / "run"), tmp_path / "scratch")
    rerun.go_to(0, 5)
    rerun.rerun_round()
    assert rerun.differences == []
    assert rerun.snapshot.weights_sha256 == traces(tmp_path / "run")["weights_sha256"]


def test_workers_without_the_folder_of_the_run_get_the_versions_with_their_task(tmp_path: Path) -> None:
    run(case("ditto"), tmp_path / "run")
    rerun = Rerun(Run(tmp_path / "run"), tmp_path / "scratch")
    planned = rerun.go_to(0, 5)
    store = RemoteClientStore()
    remote = Worker(rerun.config, rerun.run_context, store=store)
    remote.begin(0, {})
    versions = {plan.origin.digest for plan in planned.client_plans if plan.origin is not None} - {""}
    assert versions
    for cohort in planned.cohorts:
        digests = ClientPlans.of(cohort.clients).stored_digests()
        here = rerun.worker.train(cohort, planned.received)
        with store.task({digest: rerun.store.get(digest) for digest in digests}):
            there = remote.train(cohort, planned.received)
        for part, tensors in here.sums.items():
            assert all(torch.equal(there.sums[part][name], t) for name, t in tensors.items())


def test_evaluation_by_virtual_time(tmp_path: Path) -> None:
    this = case(rounds=12, evaluate=Evaluate(every=0, virtual_seconds=0.2, batch_size=60))
    config.rules.check(this)
    run(this, tmp_path)
    found = rows(tmp_path)
    clocks = [0.0] + [row["virtual_seconds"] for row in found]
    due = {
        row["step"] for row, before in zip(found, clocks, strict=False) if before // 0.2 < row["virtual_seconds"] // 0.2
    }
    assert 1 < len(due) < 12
    assert {row["step"] for row in rows(tmp_path, "evaluations")} == {0, 12} | due


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("name", ["vectorized", "fedasync", "client state"])
def test_ray_workers_change_no_bit(name: str, workers: int, tmp_path: Path, ray_session: object) -> None:
    this = case(**RUNS[name])
    run(this, tmp_path / "inline")
    run(this, tmp_path / "ray", workers=workers)
    assert traces(tmp_path / "ray") == traces(tmp_path / "inline")
