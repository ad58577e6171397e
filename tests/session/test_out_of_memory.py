"""Out-of-memory errors: a retry alone on a fresh worker, then half as many clients per batch; results do not change."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from fakes import Stopping, experiment, run, traces
from faults import FaultyScaffold, num_met, order, processes

from simfl.errors import OutOfMemory
from simfl.experiment import Evaluate
from simfl.runs import tables

BOTH = pytest.mark.parametrize("kind", ["no GPU memory", "no memory"])


def faulty(folder: Path, mode: str = "sequential", **settings):
    return experiment(FaultyScaffold(folder=str(folder)), mode, **settings)


@BOTH
@pytest.mark.parametrize("mode", ["sequential", "vectorized"])
def test_task_that_fits_the_second_time_does_not_change_results(kind, mode, tmp_path):
    case = faulty(tmp_path / "faults", mode)
    run(case, tmp_path / "whole")
    order(tmp_path / "faults", kind, times=1)
    run(case, tmp_path / "retried")
    assert num_met(tmp_path / "faults") == 1
    assert traces(tmp_path / "retried") == traces(tmp_path / "whole")


def test_client_that_never_fits_ends_a_sequential_run_with_one_line(tmp_path):
    order(tmp_path / "faults", "no GPU memory")
    with pytest.raises(OutOfMemory, match=r"^out of memory on clients [^\n]*\b3\b[^\n]*local.batch_size[^\n]*$"):
        run(faulty(tmp_path / "faults"), tmp_path / "run")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["status"], summary["rounds"]) == ("failed", 1)


def test_vectorized_run_continues_with_half_the_clients_per_batch_and_reports_it(tmp_path):
    """A cohort of 4 clients is out of memory twice in round 2, so it is trained as cohorts of 2."""
    order(tmp_path / "faults", "no GPU memory", client=None, round=1, times=2)
    display = Stopping()
    run(faulty(tmp_path / "faults", "vectorized", clients_per_batch=4), tmp_path / "run", display=display)
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert (manifest["identity"]["clients_per_batch"], manifest["clients_per_batch"]) == (4, [[1, 2]])
    assert any("from round 2 on, 2 clients train per batch" in text for text in display.messages)
    assert [row["sampled"] for row in tables.rows(tmp_path / "run" / "rounds.parquet")] == [7, 7, 7]


def test_resumed_run_keeps_the_clients_per_batch_of_each_round(tmp_path):
    case = faulty(tmp_path / "faults", "vectorized", clients_per_batch=4)
    order(tmp_path / "faults", "no GPU memory", client=None, round=1, times=2)
    run(case, tmp_path / "whole")
    order(tmp_path / "again", "no GPU memory", client=None, round=1, times=2)
    case = faulty(tmp_path / "again", "vectorized", clients_per_batch=4)
    run(case, tmp_path / "parts", display=Stopping(1))
    run(case, tmp_path / "parts", resume=True, display=Stopping(2))
    run(case, tmp_path / "parts", resume=True)
    assert traces(tmp_path / "parts") == traces(tmp_path / "whole")


def test_one_client_per_batch_cannot_be_halved(tmp_path):
    order(tmp_path / "faults", "no memory")
    with pytest.raises(OutOfMemory, match=r"^out of memory on clients 3\b[^\n]*$"):
        run(faulty(tmp_path / "faults", "vectorized", clients_per_batch=4), tmp_path / "run")
    assert json.loads((tmp_path / "run" / "manifest.json").read_text())["clients_per_batch"] == [[1, 2], [1, 1]]


def test_evaluation_that_does_not_fit_fails_and_does_not_change_the_batch_size(tmp_path, monkeypatch):
    from simfl.objectives.classification import Classification

    def out_of_memory(*_):
        raise MemoryError

    case = experiment(mode="vectorized", clients_per_batch=4, evaluate=Evaluate(every=2))
    with monkeypatch.context() as patched:
        patched.setattr(Classification, "predict", out_of_memory)
        with pytest.raises(OutOfMemory, match=r"^out of memory on 60 examples of split valid[^\n]*$"):
            run(case, tmp_path)
    assert "clients_per_batch" not in json.loads((tmp_path / "manifest.json").read_text())


@pytest.mark.slow
def test_task_is_retried_on_a_fresh_worker_on_ray(tmp_path, ray_session):
    case = faulty(tmp_path / "faults")
    run(case, tmp_path / "whole")
    order(tmp_path / "faults", "no GPU memory", times=1)
    order(tmp_path / "faults", "no memory", round=2, client=None, times=1)
    display = Stopping()
    run(case, tmp_path / "retried", workers=2, display=display)
    assert traces(tmp_path / "retried") == traces(tmp_path / "whole")
    assert sum("alone on a fresh worker" in text for text in display.messages) == 2
    assert os.getpid() not in processes(tmp_path / "faults")


@pytest.mark.slow
def test_cohort_that_is_out_of_memory_twice_is_halved_on_ray(tmp_path, ray_session):
    case = faulty(tmp_path / "faults", "vectorized", clients_per_batch=4)
    order(tmp_path / "faults", "no GPU memory", client=None, round=1, times=2)
    run(case, tmp_path / "inline")
    order(tmp_path / "more", "no GPU memory", client=8, round=1, times=2)
    display = Stopping()
    run(faulty(tmp_path / "more", "vectorized", clients_per_batch=4), tmp_path / "ray", workers=2, display=display)
    assert len(set(processes(tmp_path / "more"))) == 2
    assert traces(tmp_path / "ray")["weights_sha256"] == traces(tmp_path / "inline")["weights_sha256"]
    assert any("2 clients train per batch" in text for text in display.messages)
