"""Times are measured once, under one name, and appear in no table."""

from __future__ import annotations

import json
import time

import pytest
from fakes import Stopping, experiment, run, traces

from simfl.experiment import Evaluate
from simfl.timing import NAMES, Clock, Stopwatch, Trace, clocked, measured, timed


def rounds(folder):
    """Return the round events of a log."""
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [line for line in lines if line["event"] == "round"]


def spans(folder):
    return [event for event in json.loads((folder / "trace.json").read_text()) if event["ph"] == "X"]


def test_a_name_counts_only_its_own_time():
    """100 ms in total: 60 ms of train, 20 ms of load and 20 ms of decode inside of it."""
    clock = Clock()
    with clock.measure("train"):
        time.sleep(0.06)
        with clock.measure("load"):
            time.sleep(0.02)
            with clock.measure("decode"):
                time.sleep(0.02)
    assert clock.seconds["train"] == pytest.approx(0.06, abs=0.02)
    assert clock.seconds["load"] == pytest.approx(0.02, abs=0.015)
    assert clock.seconds["decode"] == pytest.approx(0.02, abs=0.015)
    assert clock.busy == pytest.approx(0.1, abs=0.04)


def test_nested_measures_of_one_name_count_once():
    clock = Clock()
    with clock.measure("train"), clock.measure("train"):
        time.sleep(0.05)
    assert clock.seconds["train"] == pytest.approx(0.05, abs=0.02)


def test_a_failing_block_is_counted_too():
    clock = Clock()
    with pytest.raises(ValueError, match="no"), clock.measure("train"):
        raise ValueError("no")
    assert clock.seconds["train"] > 0


def test_timed_functions_count_on_the_current_clock():
    @timed("encode")
    def encode(x):
        with measured("sum"):
            return x + 1

    assert encode(1) == 2  # no clock runs
    clock = Clock()
    with clocked(clock):
        assert encode(1) == 2
    assert set(clock.seconds) == {"encode", "sum"}


def test_a_stopwatch_adds_workers_to_the_driver_and_restarts_with_each_lap():
    watch = Stopwatch(2, None)
    watch.own.add("server", 1.0)
    watch.count([Clock(worker=1, seconds={"train": 2.0, "queue": 5.0})], training=True)
    watch.count([Clock(worker=0, seconds={"evaluate": 3.0})], training=False)
    seconds, busy, memory, use, _, _ = watch.lap()
    assert seconds == {**dict.fromkeys(NAMES, 0.0), "server": 1.0, "train": 2.0, "queue": 5.0}
    assert busy == (3.0, 2.0)
    assert watch.lap()[:4] == (dict.fromkeys(NAMES, 0.0), (0.0, 0.0), memory, use)


def test_an_incomplete_trace_can_be_read_line_by_line(tmp_path):
    clock = Clock(traced=True)
    with clock.measure("train", "clients 1"):
        pass
    trace = Trace(tmp_path / "trace.json")
    trace.add(1, clock.spans)
    trace.close()
    whole = (tmp_path / "trace.json").read_text()
    assert [event["name"] for event in json.loads(whole)] == ["process_name", "train"]
    assert [json.loads(line.rstrip(","))["pid"] for line in whole.splitlines()[1:3]] == [1, 1]


def test_the_log_has_every_timing_of_every_round(tmp_path):
    run(experiment(rounds=3, evaluate=Evaluate(every=2)), tmp_path)
    found = rounds(tmp_path)
    assert len(found) == 3
    for row in found:
        assert tuple(row["timings"]) == NAMES
        inside = sum(row["timings"].values()) - row["timings"]["queue"]
        assert 0.5 * row["seconds"] < inside <= row["seconds"]
        assert 0 < row["busy"][0] <= row["seconds"]
        for name in ("decode", "load", "train", "encode", "sum", "server", "save"):
            assert row["timings"][name] > 0, name
        assert row["timings"]["transfer"] == 0  # all in this process
    assert [row["timings"]["evaluate"] > 0 for row in found] == [False, True, True]


def test_tracing_changes_no_result(tmp_path):
    run(experiment("scaffold"), tmp_path / "plain")
    run(experiment("scaffold"), tmp_path / "traced", profile=True)
    assert traces(tmp_path / "traced") == traces(tmp_path / "plain")
    assert not (tmp_path / "plain" / "trace.json").exists()


def test_a_trace_shows_the_driver_and_its_worker(tmp_path):
    run(experiment(), tmp_path, profile=True)
    driver = {span["name"] for span in spans(tmp_path) if span["pid"] == 0}
    worker = {span["name"] for span in spans(tmp_path) if span["pid"] == 1}
    assert driver >= {"encode", "sum", "server", "evaluate", "save"}
    assert worker >= {"decode", "train", "encode", "sum", "evaluate"}
    assert "clients 2, 3" in {span["args"]["about"] for span in spans(tmp_path)}


def test_a_message_reports_fewer_cohorts_than_workers(tmp_path, monkeypatch):
    from fakes import scatter

    scatter(monkeypatch)
    display = Stopping()
    run(
        experiment(rounds=1, clients_per_batch=1, participation=None, clients_per_round=2),
        tmp_path / "few",
        display=display,
    )
    assert [text for text in display.messages if "fewer than the 3 workers" in text]
    display = Stopping()
    run(experiment(rounds=1, clients_per_batch=2), tmp_path / "many", display=display)
    assert not [text for text in display.messages if "workers" in text]


@pytest.mark.slow
def test_on_ray_transfers_and_the_busy_time_of_every_worker_are_counted(tmp_path, ray_session):
    run(experiment(rounds=4, clients_per_batch=1), tmp_path, workers=2, profile=True)
    last = rounds(tmp_path)[-1]
    assert last["timings"]["transfer"] > 0
    assert last["timings"]["queue"] > 0
    assert len(last["busy"]) == 2
    assert {span["pid"] for span in spans(tmp_path)} == {0, 1, 2}
    assert "dispatch" in {span["name"] for span in spans(tmp_path)}


def test_a_worker_may_join_and_memory_is_the_peak_so_far():
    watch = Stopwatch(1, None)
    watch.count([Clock(worker=0, memory=700), Clock(worker=2, memory=50), Clock(worker=0, memory=300)], training=True)
    assert watch.lap()[2] == (700, 0, 50)
    watch.count([Clock(worker=2, memory=60)], training=True)
    assert watch.lap()[2] == (700, 0, 60)


def test_gpu_utilization_is_the_mean_over_a_lap_or_absent():
    """Readings of worker 0 are 0.5 and 1, so its mean is 0.75; worker 1 has none."""
    watch = Stopwatch(2, None)
    watch.count([Clock(worker=0, use=0.5), Clock(worker=0, use=1.0), Clock(worker=1)], training=True)
    assert watch.lap().use == (0.75, None)
    watch.count([Clock(worker=0), Clock(worker=1)], training=True)
    assert watch.lap().use == ()
