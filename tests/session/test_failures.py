"""Failure handling: failures are named, skipped or retried as the experiment says, and nothing is lost silently."""

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

from simfl.aggregation.columns import Columns
from simfl.data.base import Dataset
from simfl.errors import ClientError, ConfigError, DataError, RunError
from simfl.runs import tables
from simfl.seeds import seed_for

BOTH_MODES = pytest.mark.parametrize("mode", ["sequential", "vectorized"])


def rows(folder, name):
    return tables.rows(folder / f"{name}.parquet")


# Exceptions of a client


@BOTH_MODES
def test_client_exception_names_client_round_and_seed_and_ends_with_the_original_error(mode, tmp_path):
    with pytest.raises(ClientError) as failed:
        run(experiment(Faulty(client=3, round=1), mode, clients_per_batch=8), tmp_path)
    first, *_, last = str(failed.value).splitlines()
    assert first == f"client 3, phase 0, round 2, seed {seed_for(42, 'visit', 0, 1, 3, 0)} failed:"
    assert last == "ZeroDivisionError: the client's own words"
    assert "in init_client" in str(failed.value)


@pytest.mark.slow
def test_client_exception_on_ray_is_the_same(tmp_path, ray_session):
    with pytest.raises(ClientError) as failed:
        run(experiment(Faulty(client=3, round=0), "vectorized", clients_per_batch=8), tmp_path, workers=1)
    first, *_, last = str(failed.value).splitlines()
    assert first == f"client 3, phase 0, round 1, seed {seed_for(42, 'visit', 0, 0, 3, 0)} failed:"
    assert last == "ZeroDivisionError: the client's own words"
    assert "in init_client" in str(failed.value)


def test_failed_run_writes_a_checkpoint_and_a_summary(tmp_path):
    with pytest.raises(ClientError):
        run(experiment(Faulty(client=3, round=1)), tmp_path)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["status"], summary["rounds"]) == ("failed", 1)
    assert [row["step"] for row in rows(tmp_path, "rounds")] == [1]


@BOTH_MODES
def test_upload_that_is_not_finite_names_client_part_and_tensor(mode, tmp_path):
    with pytest.raises(ClientError) as failed:
        run(experiment(Faulty("nan", client=3, round=1), mode), tmp_path)
    assert str(failed.value).startswith("client 3, phase 0, round 2, seed ")
    assert str(failed.value).splitlines()[-1].endswith("client 3: upload 'weights': head.bias is not finite")


# Skipped clients


@BOTH_MODES
@pytest.mark.parametrize("fault", ["raise", "nan"])
def test_skipped_client_is_counted_and_only_its_download_is_recorded(fault, mode, tmp_path):
    run(experiment(Faulty(fault, client=3, round=1), mode, clients_per_batch=4, on_error="skip"), tmp_path)
    assert [(row["sampled"], row["skipped"]) for row in rows(tmp_path, "rounds")] == [(7, 0), (7, 1), (7, 0)]
    assert 3 not in [row["client"] for row in rows(tmp_path, "clients") if row["round"] == 2]
    parts = [row["direction"] for row in rows(tmp_path, "ledger") if (row["round"], row["client"]) == (2, 3)]
    assert parts == ["download"]


@BOTH_MODES
def test_sampled_clients_are_the_finished_and_the_skipped_ones(mode, tmp_path):
    run(experiment(Faulty(client=3, round=1), mode, on_error="skip", poisson=0.5, rounds=6), tmp_path)
    finished = [row["round"] for row in rows(tmp_path, "clients")]
    for row in rows(tmp_path, "rounds"):
        assert row["sampled"] == finished.count(row["round"]) + row["skipped"]


@pytest.mark.parametrize("weighting", ["examples", "uniform"])
def test_mean_is_over_the_finished_clients(weighting, tmp_path):
    """For deltas d0, d1 and weights a, b the model moves by (a d0 + b d1) / (a + b), and without client 1 by d0."""
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


@BOTH_MODES
def test_round_without_finished_clients_counts_and_does_not_change_the_model(mode, tmp_path):
    case = experiment(
        Faulty(client=0, round=1), mode, on_error="skip", data=Toy(sizes=(6,)), participation=1.0, rounds=2
    )
    run(case, tmp_path / "two")
    run(experiment(Faulty(), mode, data=Toy(sizes=(6,)), participation=1.0, rounds=1), tmp_path / "one")
    assert all(torch.equal(t, model(tmp_path / "two")[name]) for name, t in model(tmp_path / "one").items())
    assert [row["skipped"] for row in rows(tmp_path / "two", "rounds")] == [0, 1]
    assert rows(tmp_path / "two", "rounds")[1]["loss"] is None


@BOTH_MODES
def test_skipping_is_bit_identical_on_any_workers(mode, tmp_path, monkeypatch):
    case = experiment(Faulty(client=3, round=1), mode, on_error="skip")
    run(case, tmp_path / "one")
    scatter(monkeypatch)
    run(case, tmp_path / "three")
    assert traces(tmp_path / "three") == traces(tmp_path / "one")


def test_retried_client_does_not_change_results(tmp_path):
    (tmp_path / "met").mkdir()
    case = experiment(Faulty(client=3, round=1, folder=str(tmp_path / "met"), times=1), on_error="retry")
    run(case, tmp_path / "retried")
    assert len(list((tmp_path / "met").iterdir())) == 1
    run(case, tmp_path / "whole")  # the fault does not occur again
    assert traces(tmp_path / "retried") == traces(tmp_path / "whole")


def test_lost_client_update_is_detected(tmp_path, monkeypatch):
    train = Scattered.train

    def lossy(self, *given):
        results = train(self, *given)
        results[-1].clients = Columns.of(list(results[-1].clients)[:-1])
        return results

    scatter(monkeypatch)
    monkeypatch.setattr(Scattered, "train", lossy)
    with pytest.raises(AssertionError, match="a client update was lost"):
        run(experiment(), tmp_path)


# Workers


def kill_when_met(folder, number):
    """Kill each worker that leaves its process id in the folder, from a thread."""

    def watch():
        killed = 0
        while killed < number:
            for path in sorted(folder.iterdir())[killed:]:
                os.kill(int(path.name.partition(".")[0]), signal.SIGKILL)
                killed += 1
            time.sleep(0.05)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()


def test_killed_worker_is_replaced_and_results_do_not_change(tmp_path, ray_session):
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
def test_workers_killed_repeatedly_do_not_change_results(tmp_path, ray_session):
    (tmp_path / "met").mkdir()
    case = experiment(Faulty("die", client=3, round=1, folder=str(tmp_path / "met"), times=3))
    run(case, tmp_path / "killed", workers=3)
    assert len(list((tmp_path / "met").iterdir())) == 3
    run(case, tmp_path / "whole")
    assert traces(tmp_path / "killed") == traces(tmp_path / "whole")


@pytest.mark.slow
def test_task_whose_workers_always_die_ends_the_run_with_one_line(tmp_path, ray_session):
    with pytest.raises(RunError, match=r"^[^\n]*died 4 times[^\n]*$") as failed:
        run(experiment(Faulty("die", client=3, round=1)), tmp_path, workers=2)
    assert "client" in str(failed.value)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["status"], summary["rounds"]) == ("failed", 1)


@dataclass(frozen=True)
class OnlyHere(Toy):
    """Data that only one process can read, as from a disk that other nodes lack."""

    process: int = 0

    def load(self, cache: Path) -> Dataset:
        if os.getpid() != self.process:
            raise DataError("the data are not on this machine")
        return super().load(cache)


@pytest.mark.slow
def test_worker_without_the_data_ends_the_run_with_the_error_of_the_reader(tmp_path, ray_session):
    with pytest.raises(DataError, match=r"^the data are not on this machine$"):
        run(experiment(data=OnlyHere(process=os.getpid())), tmp_path, workers=1)


@pytest.mark.slow
def test_worker_that_cannot_start_is_reported_in_one_line(tmp_path, ray_session, monkeypatch):
    module = types.ModuleType("only_here")
    module.Data = type("Data", (Toy,), {"__module__": "only_here", "__qualname__": "Data"})
    monkeypatch.setitem(sys.modules, "only_here", module)
    with pytest.raises(RunError, match=r"^a worker cannot start: [^\n]*No module named 'only_here'[^\n]*$"):
        run(experiment(data=module.Data()), tmp_path, workers=1)


@pytest.mark.slow
def test_more_workers_than_processors_are_refused(tmp_path, ray_session):
    with pytest.raises(ConfigError, match=r"^--workers: requested 9 workers, but Ray has 3 CPUs$"):
        run(experiment(), tmp_path, workers=9)


# Resources


@pytest.mark.slow
def test_closed_pools_leave_no_actors(tmp_path, ray_session):
    import ray

    for number in range(5):
        run(experiment(rounds=1), tmp_path / str(number), workers=2)
    deadline = time.monotonic() + 30
    while ray.available_resources().get("CPU", 0) < 3 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert ray.available_resources()["CPU"] == 3


@pytest.mark.slow
def test_ray_started_for_a_run_ends_with_it(tmp_path):
    code = (
        "import sys, ray; from fakes import experiment, run; from pathlib import Path\n"
        "[run(experiment(rounds=1), Path(sys.argv[1]) / str(n), workers=1) for n in range(2)]\n"
        "print(ray.is_initialized())"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], cwd=Path(__file__).parents[1], capture_output=True, text=True
    )
    assert ended.stdout.split()[-1:] == ["False"], ended.stderr
