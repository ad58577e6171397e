"""Who gets which work follows what was learned of the workers, and changes no bit."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from fakes import Stopping, experiment, run, traces
from pretended import ActorDied, pretend

from simfl.errors import OutOfMemory, RunError
from simfl.runtime.ray.calls import Call, Calls
from simfl.runtime.ray.cost_model import Costs
from simfl.runtime.ray.errands import Errands
from simfl.runtime.ray.jobs import Job
from simfl.timing import Clock


def test_a_slow_worker_gets_less_and_the_numbers_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven clients a round, of 3 to 15 local steps; worker 1 is six times slower, so the work of two workers of speed
    1 takes 2 / (1 + 1/6) = 1.71 times as long at best. A round of dealing by steps takes 72 s, with 12 steps on worker
    1; it is learned from the second round on, since the first measurement of each worker does not count."""
    case = experiment("scaffold", clients_per_batch=1, rounds=6, epochs=3)
    run(case, tmp_path / "here")
    shares, ends = {}, {}
    for name, slow in {"even": {}, "uneven": {1: 6.0}}.items():
        with monkeypatch.context() as patched:
            ray = pretend(patched, slow=slow, row_seconds=0.0)
            run(case, tmp_path / name)
            late = [who for who, method, what in ray.sent if method == "train" and int(what.split(".")[0]) >= 2]
            shares[name], ends[name] = Counter(late), ray.now - ray.began[2]
        assert traces(tmp_path / name) == traces(tmp_path / "here")
    assert abs(shares["even"][0] - shares["even"][1]) <= 6
    assert shares["uneven"][1] <= shares["uneven"][0] / 3
    assert ray.began[1] - ray.began[0] == 72.0
    assert ends["uneven"] < 1.75 * ends["even"]


def test_a_new_worker_in_the_place_of_a_slow_one_is_not_thought_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = experiment(clients_per_batch=1, rounds=6)
    run(case, tmp_path / "here")
    ray = pretend(monkeypatch, faults={("train", 20): ActorDied("gone")}, row_seconds=0.0)
    run(case, tmp_path / "there")
    assert ray.count["begin"] == 3
    assert traces(tmp_path / "there") == traces(tmp_path / "here")


def test_the_longest_waits_first_and_each_piece_is_done_once() -> None:
    errands = Errands(["a", "b", "c"], [1.0, 3.0, 2.0])
    assert errands.waiting == [1, 2, 0]
    for work in (1, 2, 0):
        errands.take(work)
    errands.done()
    assert not errands.over
    assert errands.died(2, "gone") == "a worker died on c (gone); it is replaced and they are tried again"
    assert errands.waiting == [2]
    assert not errands.solitary
    errands.take(2)
    errands.died(2, "gone")
    assert errands.solitary
    assert errands.take_alone() == 2
    errands.starved(2, "full")
    assert errands.take_alone() == 2
    with pytest.raises(OutOfMemory, match="out of memory on c, also alone on a fresh worker: full"):
        errands.starved(2, "full")


def test_work_that_keeps_killing_workers_ends() -> None:
    errands = Errands(["a"], [1.0])
    errands.take(0)
    for _ in range(3):
        errands.died(0, "gone")
    with pytest.raises(RunError, match="a worker died 4 times on a: gone"):
        errands.died(0, "gone")


def test_a_second_call_waits_at_each_worker_but_for_the_last_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of seven cohorts a round on two workers, once costs are known: two to idle ones, two behind them, the last two
    to whoever is free; the seventh goes behind another if that would end it first. In the first round nothing waits."""
    case = experiment("scaffold", clients_per_batch=1, rounds=4, participation=None, clients_per_round=7)
    run(case, tmp_path / "here")
    ray = pretend(monkeypatch, row_seconds=0.0)
    run(case, tmp_path / "there")
    behind = Counter(int(what.split(".")[0]) for method, what in ray.behind if method == "train")
    assert behind[0] == 0
    assert {behind[2], behind[3]} <= {2, 3}
    assert traces(tmp_path / "there") == traces(tmp_path / "here")


@pytest.mark.parametrize("fault", [ActorDied("gone"), OutOfMemory("full")])
def test_what_waited_at_a_worker_that_is_gone_goes_out_again_and_is_not_blamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    """The worker is replaced once, and one cohort alone counts as tried: the one that it was at."""
    case = experiment("scaffold", clients_per_batch=1, rounds=4, participation=None, clients_per_round=7)
    run(case, tmp_path / "here")
    ray = pretend(monkeypatch, faults={("train", 15): fault}, row_seconds=0.0)
    shown = Stopping([])
    run(case, tmp_path / "there", display=shown)
    assert ray.behind, "nothing waited"
    assert ray.count["begin"] == 3
    assert sum("tried again" in text for text in shown.messages) == 1
    assert ray.count["train"] in (29, 30)  # 28, the one that failed, and what waited behind it
    assert traces(tmp_path / "there") == traces(tmp_path / "here")


def test_a_call_that_waited_begins_when_the_one_before_it_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two calls of 4 s at one worker, from second 10: free in 8, and 6 s later in 4 + 4 - (6 - 4) = 2."""
    now = [10.0]
    clock = SimpleNamespace(perf_counter=lambda: now[0], time=lambda: now[0])
    monkeypatch.setattr("simfl.runtime.ray.calls.time", clock)
    job = Job("train", [], [], [], [], Costs(), Errands(["a", "b"], [1.0, 1.0]), 9.0)
    calls = Calls()
    calls.by_ref = {"first": Call(job, 0, 0, 4.0), "second": Call(job, 0, 1, 4.0)}
    assert calls.ready() == {0: 8.0}
    assert calls.with_room() == []
    assert [call.name for call in calls.at_work] == ["a"]
    now[0] = 14.0
    assert calls.back("first").name == "a"
    assert calls.with_room() == [0]
    now[0] = 16.0
    assert calls.ready() == {0: 2.0}
    clock = Clock(seconds={"train": 1.5})
    calls.by_ref["second"].count(clock)
    assert clock.seconds == {"train": 1.5, "queue": 5.0, "transfer": 0.5}
    assert [call.name for call in calls.drop(0)] == ["b"]
    assert calls.ready() == {}
