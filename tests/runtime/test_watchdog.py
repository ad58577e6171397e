"""Silence becomes stacks and a failure that names who was silent."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from fakes import Stopping, experiment, run, traces
from faults import Troubled, met, order

from simfl.errors import RunError
from simfl.runtime.watchdog import Watchdog, tidy


def test_work_that_lasts_too_long_writes_the_stack_it_is_in(tmp_path):
    watch = Watchdog(tmp_path, 0.2)
    with watch.over():
        time.sleep(0.5)
    watch.close()
    (path,) = tmp_path.iterdir()
    assert "test_work_that_lasts_too_long_writes_the_stack_it_is_in" in path.read_text()


def test_work_in_time_writes_nothing_and_leaves_nothing(tmp_path):
    folder = tmp_path / "stacks"
    watch = Watchdog(folder, 0.3)
    for _ in range(3):
        with watch.over():
            time.sleep(0.05)
    time.sleep(0.4)
    watch.close()
    tidy(folder)
    assert not folder.exists()


def test_without_a_limit_nothing_is_watched(tmp_path):
    with Watchdog(tmp_path / "stacks", None).over():
        assert not (tmp_path / "stacks").exists()


def test_a_run_without_silence_leaves_no_stacks(tmp_path):
    run(experiment(rounds=1), tmp_path)
    assert not (tmp_path / "stacks").exists()


@pytest.mark.slow
def test_a_hung_worker_ends_the_run_with_its_clients_and_stacks_and_the_run_can_go_on(tmp_path, ray_session):
    case = experiment(Troubled(folder=str(tmp_path / "faults")), watchdog_seconds=6.0)
    run(case, tmp_path / "whole")
    order(tmp_path / "faults", "hang", times=1)
    line = r"^no result for 6 s from worker \d on clients [^\n]*\b3\b[^\n]*stacks[^\n]*--resume[^\n]*$"
    with pytest.raises(RunError, match=line):
        run(case, tmp_path / "hung", workers=2)
    assert met(tmp_path / "faults") == 1
    stacks = "".join(path.read_text() for path in (tmp_path / "hung" / "stacks").iterdir())
    assert "_hang" in stacks
    assert "faults.py" in stacks
    run(case, tmp_path / "hung", workers=2, resume=True)
    assert traces(tmp_path / "hung") == traces(tmp_path / "whole")


@pytest.mark.slow
def test_waiting_for_a_full_cluster_is_told_and_ends(tmp_path, ray_session, monkeypatch):
    import ray

    from simfl.runtime.ray import wait as lookout

    monkeypatch.setattr(lookout, "PATIENCE", 1.0)
    monkeypatch.setattr(lookout, "START", 3.0)

    @ray.remote(num_cpus=3)
    class Holder:
        def ready(self):
            return True

    taken, display = Holder.remote(), Stopping()
    ray.get(taken.ready.remote())
    try:
        with pytest.raises(RunError, match=r"^no worker was ready after 3 s; Ray has free: 0 of 3 CPUs$"):
            run(experiment(watchdog_seconds=1.0), tmp_path, workers=2, display=display)
    finally:
        ray.kill(taken)
    assert sum(bool(re.match("2 of 2 workers are not ready", text)) for text in display.messages) >= 2


def test_a_slow_server_step_is_not_silence(tmp_path, monkeypatch):
    """Only the waiting for results is watched."""
    from simfl.algorithms.fedavg import FedAvg

    aggregate = FedAvg.aggregate

    def slow(self, server, means):
        time.sleep(0.5)
        return aggregate(self, server, means)

    monkeypatch.setattr(FedAvg, "aggregate", slow)
    summary = run(experiment(rounds=2, watchdog_seconds=0.4), tmp_path)
    assert summary["status"] == "completed"
    assert not list(Path(tmp_path).glob("stacks/*"))
