"""What fails is named, left out or tried again, as the experiment says; and nothing is lost without a word."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import types
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from fakes import Faulty, Scattered, Stopping, Toy, experiment, model, run, scatter, traces

from simfl.data.base import Dataset
from simfl.errors import ClientError, ConfigError, DataError, RunError
from simfl.runs import tables
from simfl.seeds import seed_for

BOTH_WAYS = pytest.mark.parametrize("mode", ["sequential", "vectorized"])


def rows(folder, name):
    return tables.rows(folder / f"{name}.parquet")


# a client's own exception


@BOTH_WAYS
def test_a_clients_exception_names_client_round_and_seed_and_ends_with_its_own_words(mode, tmp_path):
    with pytest.raises(ClientError) as failed:
        run(experiment(Faulty(client=3, round=1), mode, clients_per_batch=8), tmp_path)
    first, *_, last = str(failed.value).splitlines()
    assert first == f"client 3, phase 0, round 2, seed {seed_for(42, 'visit', 0, 1, 3, 0)} failed:"
    assert last == "ZeroDivisionError: the client's own words"
    assert "in init_client" in str(failed.value)


@pytest.mark.slow
def test_on_ray_too(tmp_path, ray_session):
    with pytest.raises(ClientError) as failed:
        run(experiment(Faulty(client=3, round=0), "vectorized", clients_per_batch=8), tmp_path, workers=1)
    first, *_, last = str(failed.value).splitlines()
    assert first == f"client 3, phase 0, round 1, seed {seed_for(42, 'visit', 0, 0, 3, 0)} failed:"
    assert last == "ZeroDivisionError: the client's own words"
    assert "in init_client" in str(failed.value)


def test_a_failed_run_is_committed_and_its_summary_says_so(tmp_path):
    with pytest.raises(ClientError):
        run(experiment(Faulty(client=3, round=1)), tmp_path)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["status"], summary["rounds"]) == ("failed", 1)
    assert [row["step"] for row in rows(tmp_path, "rounds")] == [1]


@BOTH_WAYS
def test_an_upload_that_is_not_finite_names_client_part_and_tensor(mode, tmp_path):
    with pytest.raises(ClientError) as failed:
        run(experiment(Faulty("nan", client=3, round=1), mode), tmp_path)
    assert str(failed.value).startswith("client 3, phase 0, round 2, seed ")
    assert str(failed.value).splitlines()[-1].endswith("client 3: upload 'weights': head.bias is not finite")


# clients left out


@BOTH_WAYS
@pytest.mark.parametrize("fault", ["raise", "nan"])
def test_a_skipped_client_is_counted_and_leaves_no_trace_but_its_download(fault, mode, tmp_path):
    run(experiment(Faulty(fault, client=3, round=1), mode, clients_per_batch=4, on_error="skip"), tmp_path)
    assert [(row["sampled"], row["skipped"]) for row in rows(tmp_path, "rounds")] == [(7, 0), (7, 1), (7, 0)]
    assert 3 not in [row["client"] for row in rows(tmp_path, "clients") if row["round"] == 2]
    parts = [row["direction"] for row in rows(tmp_path, "ledger") if (row["round"], row["client"]) == (2, 3)]
    assert parts == ["download"]


@BOTH_WAYS
def test_dispatched_is_finished_and_skipped_in_every_round(mode, tmp_path):
    run(experiment(Faulty(client=3, round=1), mode, on_error="skip", poisson=0.5, rounds=6), tmp_path)
    finished = [row["round"] for row in rows(tmp_path, "clients")]
    for row in rows(tmp_path, "rounds"):
        assert row["sampled"] == finished.count(row["round"]) + row["skipped"]


@pytest.mark.parametrize("weighting", ["examples", "uniform"])
def test_the_mean_is_over_those_who_came_back(weighting, tmp_path):
    """Deltas d0 and d1 with weights a and b: all move by (a d0 + b d1) / (a + b), and without client 1 by d0."""
    sizes = (6, 18)
    settings = {"weighting": weighting, "participation": 1.0, "on_error": "skip", "data": Toy(sizes=sizes)}
    for missing in (None, 0, 1):
        run(
            experiment(Faulty(client=-1 if missing is None else missing, round=0), rounds=1, **settings),
            tmp_path / str(missing),
        )
    a, b = sizes if weighting == "examples" else (1, 1)
    whole, without_0, without_1 = (model(tmp_path / name) for name in ("None", "0", "1"))
    for name in whole:
        torch.testing.assert_close(whole[name], (a * without_1[name] + b * without_0[name]) / (a + b))
        assert not torch.equal(without_0[name], without_1[name])


@BOTH_WAYS
def test_a_round_without_a_client_left_changes_nothing_and_counts(mode, tmp_path):
    case = experiment(
        Faulty(client=0, round=1), mode, on_error="skip", data=Toy(sizes=(6,)), participation=1.0, rounds=2
    )
    run(case, tmp_path / "two")
    run(experiment(Faulty(), mode, data=Toy(sizes=(6,)), participation=1.0, rounds=1), tmp_path / "one")
    assert all(torch.equal(t, model(tmp_path / "two")[name]) for name, t in model(tmp_path / "one").items())
    assert [row["skipped"] for row in rows(tmp_path / "two", "rounds")] == [0, 1]
    assert rows(tmp_path / "two", "rounds")[1]["loss"] is None


@BOTH_WAYS
def test_skipping_gives_the_same_bits_whoever_does_the_work(mode, tmp_path, monkeypatch):
    case = experiment(Faulty(client=3, round=1), mode, on_error="skip")
    run(case, tmp_path / "one")
    scatter(monkeypatch)
    run(case, tmp_path / "three")
    assert traces(tmp_path / "three") == traces(tmp_path / "one")


def test_a_client_tried_again_leaves_no_trace(tmp_path):
    (tmp_path / "met").mkdir()
    case = experiment(Faulty(client=3, round=1, folder=str(tmp_path / "met"), times=1), on_error="retry")
    run(case, tmp_path / "retried")
    assert len(list((tmp_path / "met").iterdir())) == 1
    run(case, tmp_path / "whole")  # the fault has been met as often as it will be
    assert traces(tmp_path / "retried") == traces(tmp_path / "whole")


def test_a_lost_visit_is_noticed(tmp_path, monkeypatch):
    train = Scattered.train

    def lossy(self, *given):
        results = train(self, *given)
        results[-1].clients.pop()
        return results

    scatter(monkeypatch)
    monkeypatch.setattr(Scattered, "train", lossy)
    with pytest.raises(AssertionError, match="a visit was lost"):
        run(experiment(), tmp_path)


# workers


def kill_when_met(folder, number):
    """In the background: each worker that leaves its pid in the folder is killed."""

    def watch():
        killed = 0
        while killed < number:
            for path in sorted(folder.iterdir())[killed:]:
                os.kill(int(path.name.partition(".")[0]), signal.SIGKILL)
                killed += 1
            time.sleep(0.05)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()


def test_a_worker_killed_at_work_is_replaced_and_the_end_is_the_same(tmp_path, ray_session):
    (tmp_path / "met").mkdir()
    case = experiment(Faulty("sleep", client=3, round=1, folder=str(tmp_path / "met"), times=1), "vectorized")
    kill_when_met(tmp_path / "met", 1)
    display = Stopping()
    run(case, tmp_path / "killed", workers=1, display=display)
    assert len(list((tmp_path / "met").iterdir())) == 1
    assert any("died" in text and "clients" in text for text in display.messages)
    run(case, tmp_path / "whole")
    assert traces(tmp_path / "killed") == traces(tmp_path / "whole")


@pytest.mark.slow
def test_workers_killed_again_and_again_change_nothing(tmp_path, ray_session):
    (tmp_path / "met").mkdir()
    case = experiment(Faulty("die", client=3, round=1, folder=str(tmp_path / "met"), times=3))
    run(case, tmp_path / "killed", workers=3)
    assert len(list((tmp_path / "met").iterdir())) == 3
    run(case, tmp_path / "whole")
    assert traces(tmp_path / "killed") == traces(tmp_path / "whole")


@pytest.mark.slow
def test_a_worker_that_dies_every_time_ends_the_run_with_one_line(tmp_path, ray_session):
    with pytest.raises(RunError, match=r"^[^\n]*died 4 times[^\n]*$") as failed:
        run(experiment(Faulty("die", client=3, round=1)), tmp_path, workers=2)
    assert "client" in str(failed.value)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["status"], summary["rounds"]) == ("failed", 1)


@dataclass(frozen=True)
class OnlyHere(Toy):
    """Data that one process alone can read, as of a disk that other nodes lack."""

    process: int = 0

    def load(self, cache: Path) -> Dataset:
        if os.getpid() != self.process:
            raise DataError("the data are not on this machine")
        return super().load(cache)


@pytest.mark.slow
def test_a_worker_without_the_data_ends_the_run_with_the_readers_own_line(tmp_path, ray_session):
    with pytest.raises(DataError, match=r"^the data are not on this machine$"):
        run(experiment(data=OnlyHere(process=os.getpid())), tmp_path, workers=1)


@pytest.mark.slow
def test_a_worker_that_cannot_start_is_one_line(tmp_path, ray_session, monkeypatch):
    module = types.ModuleType("only_here")
    module.Data = type("Data", (Toy,), {"__module__": "only_here", "__qualname__": "Data"})
    monkeypatch.setitem(sys.modules, "only_here", module)
    with pytest.raises(RunError, match=r"^a worker cannot start: [^\n]*No module named 'only_here'[^\n]*$"):
        run(experiment(data=module.Data()), tmp_path, workers=1)


@pytest.mark.slow
def test_more_workers_than_there_are_processors_are_refused(tmp_path, ray_session):
    with pytest.raises(ConfigError, match=r"^--workers: 9 asked, Ray has 3 CPUs$"):
        run(experiment(), tmp_path, workers=9)


# what is left behind


@pytest.mark.slow
def test_pools_opened_and_closed_leave_no_actors(tmp_path, ray_session):
    import ray

    for number in range(5):
        run(experiment(rounds=1), tmp_path / str(number), workers=2)
    deadline = time.monotonic() + 30
    while ray.available_resources().get("CPU", 0) < 3 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert ray.available_resources()["CPU"] == 3


@pytest.mark.slow
def test_a_ray_started_for_a_run_ends_with_it(tmp_path):
    code = (
        "import sys, ray; from fakes import experiment, run; from pathlib import Path\n"
        "[run(experiment(rounds=1), Path(sys.argv[1]) / str(n), workers=1) for n in range(2)]\n"
        "print(ray.is_initialized())"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], cwd=Path(__file__).parents[1], capture_output=True, text=True
    )
    assert ended.stdout.split()[-1:] == ["False"], ended.stderr
