"""A round drafted, with batches drawn, while the one before it was trained is the round it would have been."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fakes import experiment, run

from simfl import simulation
from simfl.algorithms.scaffold import Scaffold
from simfl.runtime import worker
from simfl.training import client_updates as group
from simfl.training.plan import CohortPlan


@pytest.mark.parametrize(
    "more", [{}, {"algorithm": Scaffold()}, {"centralized": True}], ids=["fedavg", "scaffold", "centralized"]
)
def test_what_is_known_ahead_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: dict[str, Any]
) -> None:
    given = experiment(participation=0.5, rounds=4, **more)
    plain = run(given, tmp_path / "plain")
    train, drafted, reused = worker.train_cohort, list[int](), list[int]()

    def as_on_a_gpu(stage: Any, store: Any, plan: CohortPlan, *rest: Any) -> Any:
        reused.append(sum((plan.round, visit.client, 0) in stage.drawn for visit in plan.visits))
        result = train(stage, store, plan, *rest)
        group.draw(stage, rest[-1]())
        return result

    draft = simulation.draft
    monkeypatch.setattr(worker, "train_cohort", as_on_a_gpu)
    monkeypatch.setattr(simulation, "draft", lambda *given: drafted.append(given[-1]) or draft(*given))
    assert run(given, tmp_path / "ahead")["weights_sha256"] == plain["weights_sha256"]
    assert sum(reused) > 0
    assert drafted == [0, 1, 2, 3]  # once each, however many cohorts a round has


def test_nothing_is_ahead_of_the_last_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, upcoming = list[int](), simulation.upcoming
    monkeypatch.setattr(simulation, "upcoming", lambda *given: asked.append(len(upcoming(*given))) or [])
    train = worker.train_cohort
    monkeypatch.setattr(worker, "train_cohort", lambda *given: (given[-1](), train(*given))[1])
    run(experiment(participation=0.5, rounds=2, mode="vectorized"), tmp_path)
    assert asked[-1] == 0
    assert asked[0] > 0
