"""Watchdog: a worker that hangs leaves its stacks, and the run fails with the name of its task."""

from __future__ import annotations

import re
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fakes import Stopping, experiment, run, traces
from faults import FaultyScaffold, num_met, order

from simfl.algorithms.fedavg import FedAvg
from simfl.errors import RunError
from simfl.runtime import watchdog
from simfl.runtime.watchdog import Watchdog, remove_empty_dumps


def test_task_that_lasts_too_long_dumps_its_stack(tmp_path: Path) -> None:
    watch = Watchdog(tmp_path, 0.2)
    with watch.over():
        (path,) = tmp_path.iterdir()
        deadline = time.monotonic() + 60
        while not path.read_text() and time.monotonic() < deadline:
            time.sleep(0.01)
    watch.close()
    assert "test_task_that_lasts_too_long_dumps_its_stack" in path.read_text()


def test_each_task_is_watched_on_its_own_and_empty_files_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []
    timer = SimpleNamespace(
        dump_traceback_later=lambda seconds, file: calls.append(seconds),
        cancel_dump_traceback_later=lambda: calls.append("cancel"),
    )
    monkeypatch.setattr(watchdog, "faulthandler", timer)
    folder = tmp_path / "stacks"
    watch = Watchdog(folder, 10.0)
    for _ in range(2):
        with watch.over():
            calls.append("task")
    watch.close()
    assert calls == [9.0, "task", "cancel"] * 2
    remove_empty_dumps(folder)
    assert not folder.exists()


def test_nothing_is_watched_without_a_limit(tmp_path: Path) -> None:
    with Watchdog(tmp_path / "stacks", None).over():
        assert not (tmp_path / "stacks").exists()


def test_run_in_which_no_worker_hangs_leaves_no_stacks(tmp_path: Path) -> None:
    run(experiment(rounds=1), tmp_path)
    assert not (tmp_path / "stacks").exists()


@pytest.mark.slow
def test_hung_worker_ends_the_run_with_its_clients_and_stacks_and_the_run_can_be_resumed(
    tmp_path: Path, ray_session: None
) -> None:
    case = experiment(FaultyScaffold(folder=str(tmp_path / "faults")), watchdog_seconds=20.0)
    run(case, tmp_path / "whole")
    order(tmp_path / "faults", "hang", times=1)
    line = r"^no result for 20 s from worker \d on clients [^\n]*\b3\b[^\n]*stacks[^\n]*--resume[^\n]*$"
    with pytest.raises(RunError, match=line):
        run(case, tmp_path / "hung", workers=2)
    assert num_met(tmp_path / "faults") == 1
    stacks = "".join(path.read_text() for path in (tmp_path / "hung" / "stacks").iterdir())
    assert "_hang" in stacks
    assert "faults.py" in stacks
    run(case, tmp_path / "hung", workers=2, resume=True)
    assert traces(tmp_path / "hung") == traces(tmp_path / "whole")


@pytest.mark.slow
def test_waiting_for_a_full_cluster_is_reported_and_ends(
    tmp_path: Path, ray_session: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    from simfl.runtime.ray import pool

    monkeypatch.setattr(pool, "STATUS_INTERVAL", 1.0)
    monkeypatch.setattr(pool, "START_TIMEOUT", 3.0)

    @ray.remote(num_cpus=3)
    class Holder:
        def ready(self) -> bool:
            return True

    holder, display = Holder.remote(), Stopping()  # type: ignore[attr-defined]
    ray.get(holder.ready.remote())
    try:
        with pytest.raises(RunError, match=r"^no worker was ready after 3 s; Ray has free: 0 of 3 CPUs$"):
            run(experiment(watchdog_seconds=1.0), tmp_path, workers=2, display=display)
    finally:
        ray.kill(holder)
    assert sum(bool(re.match("2 of 2 workers are not ready", text)) for text in display.messages) >= 1


def test_server_step_is_not_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only tasks of workers are watched: however long the server aggregates, no timer is running."""
    aggregate, depth, seen = FedAvg.aggregate, [0], list[tuple[str, int]]()
    timer = SimpleNamespace(
        dump_traceback_later=lambda seconds, file: depth.__setitem__(0, depth[0] + 1),
        cancel_dump_traceback_later=lambda: (seen.append(("task", depth[0])), depth.__setitem__(0, depth[0] - 1)),
    )

    def watched(self: FedAvg, server: Any, updates: Any) -> Any:
        seen.append(("server", depth[0]))
        return aggregate(self, server, updates)

    monkeypatch.setattr(watchdog, "faulthandler", timer)
    monkeypatch.setattr(FedAvg, "aggregate", watched)
    assert run(experiment(rounds=2, watchdog_seconds=0.4), tmp_path)["status"] == "completed"
    assert {running for name, running in seen if name == "task"} == {1}
    assert [running for name, running in seen if name == "server"] == [0, 0]
