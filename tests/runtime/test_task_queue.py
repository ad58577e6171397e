"""Task queue and dispatch: the task order, retries, and the assignment by learned costs, which changes no result."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_ray import ActorDied, use_fake_ray
from fakes import Stopping, experiment, run, traces

from simfl.errors import OutOfMemory, RunError
from simfl.runtime.ray.cost_model import CostModel
from simfl.runtime.ray.task_queue import RunningTask, TaskBatch, TaskQueue, WorkerTask
from simfl.timing import Clock


def batch_of(**seconds: float) -> TaskBatch[Any]:
    """Return a batch of tasks with these names and costs."""
    plan: Any = None
    tasks = [WorkerTask(plan, name, (cost,)) for name, cost in seconds.items()]
    return TaskBatch("train", tasks, [], CostModel())


def test_slow_worker_gets_fewer_tasks_and_results_do_not_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seven clients per round, of 3 to 15 local steps; worker 1 is six times slower, so the tasks of two workers of
    speed 1 take 2 / (1 + 1/6) = 1.71 times as long at best. A round that is assigned by steps takes 72 s, with 12 steps
    on worker 1. The costs are known from the second round on, since each worker's first measurement is ignored."""
    case = experiment("scaffold", clients_per_batch=1, rounds=6, epochs=3)
    run(case, tmp_path / "inline")
    shares, ends = {}, {}
    for name, slow in {"even": {}, "uneven": {1: 6.0}}.items():
        with monkeypatch.context() as patched:
            ray = use_fake_ray(patched, slow=slow, row_seconds=0.0)
            run(case, tmp_path / name)
            later = [worker for worker, method, task in ray.sent if method == "train" and int(task.split(".")[0]) >= 2]
            shares[name], ends[name] = Counter(later), ray.now - ray.began[2]
        assert traces(tmp_path / name) == traces(tmp_path / "inline")
    assert abs(shares["even"][0] - shares["even"][1]) <= 6
    assert shares["uneven"][1] <= shares["uneven"][0] / 3
    assert ray.began[1] - ray.began[0] == 72.0
    assert ends["uneven"] < 1.75 * ends["even"]


def test_run_continues_after_a_worker_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = experiment(clients_per_batch=1, rounds=6)
    run(case, tmp_path / "inline")
    ray = use_fake_ray(monkeypatch, faults={("train", 20): ActorDied("gone")}, row_seconds=0.0)
    run(case, tmp_path / "replaced")
    assert ray.count["begin"] == 3
    assert traces(tmp_path / "replaced") == traces(tmp_path / "inline")


def test_longest_task_goes_first_and_each_task_is_done_once() -> None:
    batch = batch_of(a=1.0, b=3.0, c=2.0)
    assert batch.waiting == [1, 2, 0]
    for index in (1, 2, 0):
        batch.start(index)
    batch.complete(1, "result")
    assert not batch.finished
    assert batch.retry_after_death(2, "gone") == "a worker died on c (gone); it is replaced and the task is retried"
    assert batch.waiting == [2]
    exclusive_at_first = batch.exclusive_next
    assert not exclusive_at_first
    batch.start(2)
    batch.retry_after_death(2, "gone")
    assert batch.exclusive_next
    assert batch.start_exclusive() == 2
    batch.retry_after_out_of_memory(2, "full")
    assert batch.start_exclusive() == 2
    with pytest.raises(OutOfMemory, match="out of memory on c, also alone on a fresh worker: full"):
        batch.retry_after_out_of_memory(2, "full")


def test_task_whose_workers_keep_dying_fails_after_three_retries() -> None:
    batch = batch_of(a=1.0)
    batch.start(0)
    for _ in range(3):
        batch.retry_after_death(0, "gone")
    with pytest.raises(RunError, match="a worker died 4 times on a: gone"):
        batch.retry_after_death(0, "gone")


def test_results_are_taken_in_the_order_of_the_tasks() -> None:
    batch = batch_of(a=1.0, b=3.0, c=2.0)
    for index in (1, 0, 2):
        batch.start(index)
    batch.complete(1, "b")
    assert list(batch.take_results()) == []
    batch.complete(0, "a")
    assert list(batch.take_results()) == ["a", "b"]
    batch.complete(2, "c")
    assert batch.finished
    assert list(batch.take_results()) == ["c"]


def test_second_task_waits_at_each_worker_except_for_the_last_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seven cohorts per round on two workers, with known costs: two go to idle workers, two wait behind them, and the
    last two go to the worker that is free first; the seventh waits behind another if that finishes it first. In the
    first round none waits."""
    case = experiment("scaffold", clients_per_batch=1, rounds=4, participation=None, clients_per_round=7)
    run(case, tmp_path / "inline")
    ray = use_fake_ray(monkeypatch, row_seconds=0.0)
    run(case, tmp_path / "ray")
    ahead = Counter(int(task.split(".")[0]) for method, task in ray.sent_ahead if method == "train")
    assert ahead[0] == 0
    assert {ahead[2], ahead[3]} <= {2, 3}
    assert traces(tmp_path / "ray") == traces(tmp_path / "inline")


@pytest.mark.parametrize("fault", [ActorDied("gone"), OutOfMemory("full")])
def test_task_that_waited_at_a_lost_worker_is_sent_again_and_does_not_count_as_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    """The worker is replaced once, and only the cohort that it was training counts as retried."""
    case = experiment("scaffold", clients_per_batch=1, rounds=4, participation=None, clients_per_round=7)
    run(case, tmp_path / "inline")
    ray = use_fake_ray(monkeypatch, faults={("train", 15): fault}, row_seconds=0.0)
    display = Stopping()
    run(case, tmp_path / "ray", display=display)
    assert ray.sent_ahead, "no task waited"
    assert ray.count["begin"] == 3
    assert sum("is retried" in text for text in display.messages) == 1
    assert ray.count["train"] in (29, 30)  # 28, the one that failed, and the one that waited behind it
    assert traces(tmp_path / "ray") == traces(tmp_path / "inline")


def test_waiting_task_starts_when_the_one_before_it_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two tasks of 4 s at one worker, from second 10: it is free in 8 s, and 6 s later in 4 + 4 - (6 - 4) = 2 s."""
    now = [9.0]
    clock = SimpleNamespace(perf_counter=lambda: now[0], time=lambda: now[0])
    monkeypatch.setattr("simfl.runtime.ray.task_queue.time", clock)
    batch, queue = batch_of(a=1.0, b=1.0), TaskQueue()
    now[0] = 10.0
    queue.running = {"first": RunningTask(batch, 0, 0, 4.0), "second": RunningTask(batch, 1, 0, 4.0)}
    assert queue.busy_seconds() == {0: 8.0}
    assert queue.with_room() == []
    assert queue.idle([0, 1]) == [1]
    assert [running.task.name for running in queue.current()] == ["a"]
    now[0] = 14.0
    queue.finish("first")
    assert queue.with_room() == [0]
    now[0] = 16.0
    assert queue.busy_seconds() == {0: 2.0}
    times = Clock(seconds={"train": 1.5})
    queue.running["second"].add_times(times)
    assert times.seconds == {"train": 1.5, "queue": 5.0, "transfer": 0.5}
    assert [running.task.name for running in queue.drop(0)] == ["b"]
    assert queue.busy_seconds() == {}
