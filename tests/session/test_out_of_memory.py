"""Want of memory is answered without a change of results: alone on a fresh worker, then, side by side, half as many."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from fakes import Stopping, experiment, run, traces
from faults import Troubled, met, order, processes

from simfl.errors import OutOfMemory
from simfl.experiment import Evaluate
from simfl.runs import tables

BOTH = pytest.mark.parametrize("kind", ["no GPU memory", "no memory"])


def troubled(folder: Path, mode: str = "sequential", **settings):
    return experiment(Troubled(folder=str(folder)), mode, **settings)


@BOTH
@pytest.mark.parametrize("mode", ["sequential", "vectorized"])
def test_what_fits_the_second_time_leaves_no_trace(kind, mode, tmp_path):
    case = troubled(tmp_path / "faults", mode)
    run(case, tmp_path / "whole")
    order(tmp_path / "faults", kind, times=1)
    run(case, tmp_path / "starved")
    assert met(tmp_path / "faults") == 1
    assert traces(tmp_path / "starved") == traces(tmp_path / "whole")


def test_one_at_a_time_a_client_that_never_fits_ends_the_run_with_one_line(tmp_path):
    order(tmp_path / "faults", "no GPU memory")
    with pytest.raises(OutOfMemory, match=r"^out of memory on clients [^\n]*\b3\b[^\n]*local.batch_size[^\n]*$"):
        run(troubled(tmp_path / "faults"), tmp_path / "run")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["status"], summary["rounds"]) == ("failed", 1)


def test_side_by_side_the_run_goes_on_at_half_the_width_and_says_so(tmp_path):
    """A cohort of 4 starves twice in round 2, so that it is tried as cohorts of 2."""
    order(tmp_path / "faults", "no GPU memory", client=None, round=1, times=2)
    display = Stopping()
    run(troubled(tmp_path / "faults", "vectorized", clients_per_batch=4), tmp_path / "run", display=display)
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert (manifest["identity"]["clients_per_batch"], manifest["clients_per_batch"]) == (4, [[1, 2]])
    assert any("from round 2 on cohorts are 2 clients wide" in text for text in display.messages)
    assert [row["sampled"] for row in tables.rows(tmp_path / "run" / "rounds.parquet")] == [7, 7, 7]


def test_a_resumed_run_keeps_each_rounds_width(tmp_path):
    case = troubled(tmp_path / "faults", "vectorized", clients_per_batch=4)
    order(tmp_path / "faults", "no GPU memory", client=None, round=1, times=2)
    run(case, tmp_path / "whole")
    order(tmp_path / "again", "no GPU memory", client=None, round=1, times=2)
    case = troubled(tmp_path / "again", "vectorized", clients_per_batch=4)
    run(case, tmp_path / "parts", display=Stopping(1))
    run(case, tmp_path / "parts", resume=True, display=Stopping(2))
    run(case, tmp_path / "parts", resume=True)
    assert traces(tmp_path / "parts") == traces(tmp_path / "whole")


def test_a_width_of_one_cannot_be_halved(tmp_path):
    order(tmp_path / "faults", "no memory")
    with pytest.raises(OutOfMemory, match=r"^out of memory on clients 3\b[^\n]*$"):
        run(troubled(tmp_path / "faults", "vectorized", clients_per_batch=4), tmp_path / "run")
    assert json.loads((tmp_path / "run" / "manifest.json").read_text())["clients_per_batch"] == [[1, 2], [1, 1]]


def test_an_evaluation_that_does_not_fit_says_so_and_narrows_nothing(tmp_path, monkeypatch):
    from simfl.objectives.classification import Classification

    def starve(*_):
        raise MemoryError

    case = experiment(mode="vectorized", clients_per_batch=4, evaluate=Evaluate(every=2))
    with monkeypatch.context() as patched:
        patched.setattr(Classification, "predict", starve)
        with pytest.raises(OutOfMemory, match=r"^out of memory on 60 examples of split valid[^\n]*$"):
            run(case, tmp_path)
    assert "clients_per_batch" not in json.loads((tmp_path / "manifest.json").read_text())


@pytest.mark.slow
def test_on_ray_it_is_tried_again_on_a_fresh_worker(tmp_path, ray_session):
    case = troubled(tmp_path / "faults")
    run(case, tmp_path / "whole")
    order(tmp_path / "faults", "no GPU memory", times=1)
    order(tmp_path / "faults", "no memory", round=2, client=None, times=1)
    display = Stopping()
    run(case, tmp_path / "starved", workers=2, display=display)
    assert traces(tmp_path / "starved") == traces(tmp_path / "whole")
    assert sum("alone on a fresh worker" in text for text in display.messages) == 2
    assert os.getpid() not in processes(tmp_path / "faults")


@pytest.mark.slow
def test_on_ray_a_cohort_that_starves_twice_is_halved(tmp_path, ray_session):
    case = troubled(tmp_path / "faults", "vectorized", clients_per_batch=4)
    order(tmp_path / "faults", "no GPU memory", client=None, round=1, times=2)
    run(case, tmp_path / "inline")
    order(tmp_path / "more", "no GPU memory", client=8, round=1, times=2)
    display = Stopping()
    run(troubled(tmp_path / "more", "vectorized", clients_per_batch=4), tmp_path / "ray", workers=2, display=display)
    assert len(set(processes(tmp_path / "more"))) == 2
    assert traces(tmp_path / "ray")["weights_sha256"] == traces(tmp_path / "inline")["weights_sha256"]
    assert any("cohorts are 2 clients wide" in text for text in display.messages)
