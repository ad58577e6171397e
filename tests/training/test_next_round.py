"""A round that is drafted while the one before it is trained, with its batches drawn ahead, gives the same results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fakes import experiment, run

from simfl import simulation
from simfl.algorithms.scaffold import Scaffold
from simfl.runtime import worker
from simfl.training.plan import CohortPlan


@pytest.mark.parametrize(
    "more", [{}, {"algorithm": Scaffold()}, {"centralized": True}], ids=["fedavg", "scaffold", "centralized"]
)
def test_drafting_ahead_changes_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: dict[str, Any]
) -> None:
    given = experiment(participation=0.5, rounds=4, **more)
    plain = run(given, tmp_path / "plain")
    train, drafted, reused = worker.train_cohort, list[int](), list[int]()

    def like_on_a_gpu(executor: Any, store: Any, plan: CohortPlan, *rest: Any) -> Any:
        reused.append(sum((plan.round, client.client, 0) in executor.drawn_units for client in plan.clients))
        result = train(executor, store, plan, *rest)
        executor.draw_ahead(rest[-1]())
        return result

    draft = simulation.draft_round
    monkeypatch.setattr(worker, "train_cohort", like_on_a_gpu)
    monkeypatch.setattr(simulation, "draft_round", lambda *given: drafted.append(given[-1]) or draft(*given))
    assert run(given, tmp_path / "ahead")["weights_sha256"] == plain["weights_sha256"]
    assert sum(reused) > 0
    assert drafted == [1, 2, 3]  # once each, however many cohorts a round has


def test_nothing_is_drafted_after_the_last_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drafted, draft = list[int](), simulation.Simulation._draft_ahead
    monkeypatch.setattr(simulation.Simulation, "_draft_ahead", lambda *given: drafted.append(len(draft(*given))) or [])
    train = worker.train_cohort
    monkeypatch.setattr(worker, "train_cohort", lambda *given: (given[-1](), train(*given))[1])
    run(experiment(participation=0.5, rounds=2, mode="vectorized"), tmp_path)
    assert drafted[-1] == 0
    assert drafted[0] > 0
