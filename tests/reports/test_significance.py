"""Paired scores of examples and the spread over clients, against values computed by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from fakes import experiment, run

from simfl.evaluation.headlines import score_name
from simfl.experiment import Evaluate
from simfl.reports.significance import (
    ExampleScores,
    client_means,
    client_spread,
    difference,
    example_scores,
)
from simfl.runs.results import Run

SCORES: dict[tuple[int | str | None, int], float] = {(None, row): float(row % 2) for row in range(100)}


def accuracies(scores: dict[tuple[int | str | None, int], float], seed: int = 1, data: str = "d") -> ExampleScores:
    return ExampleScores(seed, data, {"accuracy": scores})


def test_runs_are_paired_by_seed_and_data() -> None:
    """Example 0 changes from 0 to 1 with seed 1 and not with seed 2, example 1 never: the seeds' means are .5 and 0."""
    a = [accuracies({(None, 0): 0.0, (None, 1): 1.0}, 1), accuracies({(None, 0): 1.0, (None, 1): 1.0}, 2)]
    b = [accuracies({(None, 0): 1.0, (None, 1): 1.0}, 2), accuracies({(None, 0): 1.0, (None, 1): 1.0}, 1)]
    found = difference(a, b, "accuracy")
    assert found is not None
    assert (found.mean, found.seeds, found.examples) == (0.25, 2, 2)


def test_clients_models_count_once_for_each_client() -> None:
    """Client 0 has one example, which changes by 1, client 1 has three, which do not: the mean over clients is .5."""
    before: dict[tuple[int | str | None, int], float] = {(0, 0): 0.0, (1, 0): 1.0, (1, 1): 1.0, (1, 2): 1.0}
    a, b = ([accuracies(before | {(0, 0): value}, seed) for seed in (1, 2)] for value in (0.0, 1.0))
    found = difference(a, b, "accuracy")
    assert found is not None
    assert found.mean == pytest.approx(0.5)


def test_only_common_examples_are_compared() -> None:
    some = {key: value for key, value in SCORES.items() if key[1] < 30}
    found = difference([accuracies(SCORES, s) for s in (1, 2)], [accuracies(some, s) for s in (1, 2)], "accuracy")
    assert found is not None
    assert found.examples == 30


def test_without_two_common_seeds_there_is_no_test() -> None:
    two = [accuracies(SCORES, seed=1), accuracies(SCORES, seed=2)]
    assert difference(two[:1], two, "accuracy") is None
    assert difference(two, [accuracies(SCORES, seed=2), accuracies(SCORES, seed=3)], "accuracy") is None
    assert difference(two, [accuracies(SCORES, seed=s, data="e") for s in (1, 2)], "accuracy") is None
    assert difference(two, two, "anls") is None
    assert difference(two, two, "accuracy") is not None


def test_score_names_match_those_of_summaries() -> None:
    assert score_name("valid", "global", "anls", "valid") == "anls"
    assert score_name("test", "personal", "anls", "valid") == "test.personal.anls"


def test_client_spread_matches_values_by_hand() -> None:
    """Sorted: .1 .2 .6 .7. The 10th percentile is .3 of the first of three steps; the variance is .26/4."""
    found = client_spread({3: 0.6, 1: 0.1, 2: 0.7, 0: 0.2})
    assert (found.worst, found.clients) == (0.1, 4)
    assert found.tenth == pytest.approx(0.13)
    assert found.deviation == pytest.approx((0.26 / 4) ** 0.5)


def test_a_run_stores_the_score_of_each_example_at_its_end(tmp_path: Path) -> None:
    asked = Evaluate(every=1, models=("global", "local"))
    summary = run(experiment(evaluate=asked, rounds=2), tmp_path / "r")
    found = Run(tmp_path / "r")
    assert set(found.scores()["step"].to_pylist()) == {2}
    assert np.mean(list(example_scores(found).scores["accuracy"].values())) == pytest.approx(
        summary["final"]["accuracy"]
    )
    clients = client_means(found)
    assert np.mean(list(clients["local.accuracy"].values())) == pytest.approx(summary["final"]["local.accuracy"])


def test_a_shared_model_is_scored_on_the_groups_of_each_client(tmp_path: Path) -> None:
    run(experiment(rounds=1), tmp_path / "r")
    found = Run(tmp_path / "r")
    rows = found.scores().to_pylist()
    own = [row["accuracy"] for row in rows if row["by_group"].startswith("g4.")]
    assert len(own) == 6  # 60 examples of 10 clients
    assert client_means(found)["accuracy"][4] == pytest.approx(np.mean(own))
    assert len(client_means(found)["accuracy"]) == 10
