"""The paired bootstrap and the spread over clients, against values computed by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from fakes import experiment, run

from simfl.experiment import Evaluate
from simfl.reports.significance import (
    ExampleScores,
    bootstrap,
    client_means,
    client_spread,
    difference,
    example_scores,
    score_name,
)
from simfl.runs.results import Run

SCORES: dict[tuple[int | None, int], float] = {(None, row): float(row % 2) for row in range(100)}


def accuracies(scores: dict[tuple[int | None, int], float], seed: int = 1, data: str = "d") -> ExampleScores:
    return ExampleScores(seed, data, {"accuracy": scores})


def test_equal_scores_have_no_difference() -> None:
    found = bootstrap(np.arange(20.0), np.arange(20.0))
    assert (found.mean, found.low, found.high, found.p, found.examples) == (0.0, 0.0, 0.0, 1.0, 20)


def test_a_difference_in_every_example_has_the_smallest_possible_p() -> None:
    found = bootstrap(np.zeros(10), np.full(10, 0.25), draws=500)
    assert (found.mean, found.low, found.high, found.p) == (0.25, 0.25, 0.25, 1 / 500)


def test_p_is_twice_the_fraction_of_draws_beyond_zero() -> None:
    """n = 2, differences −1 and 3: the four equally likely draws have means −1, 1, 1, 3; p = 2 · 1/4."""
    found = bootstrap(np.array([1.0, 0.0]), np.array([0.0, 3.0]), draws=40_000)
    assert found.mean == 1.0
    assert found.p == pytest.approx(0.5, abs=0.02)  # the standard deviation is 2·√(.25·.75/40000) = .0043


def test_p_depends_on_pairs_and_not_only_on_means() -> None:
    """Means are .50 and .55 twice; the difference is significant only if all differing pairs have the same sign."""
    a = np.tile([0.0, 1.0], 100)
    better = a.copy()
    better[:20:2] = 1.0
    shuffled = np.roll(better, 1)
    assert bootstrap(a, better).p < 0.01
    assert bootstrap(a, shuffled).p > 0.05
    assert bootstrap(a, better).mean == bootstrap(a, shuffled).mean == 0.05


def test_the_bootstrap_is_reproducible() -> None:
    a, b = np.arange(50.0), np.arange(50.0)[::-1]
    assert bootstrap(a, b) == bootstrap(a, b)


def test_runs_are_paired_by_seed_and_data_and_scores_averaged_over_seeds() -> None:
    """Example 0 changes from .0 to 1. with seed 1 and not with seed 2: mean .5. Example 1: 0. The mean is .25."""
    a = [accuracies({(None, 0): 0.0, (None, 1): 1.0}, 1), accuracies({(None, 0): 1.0, (None, 1): 1.0}, 2)]
    b = [accuracies({(None, 0): 1.0, (None, 1): 1.0}, 2), accuracies({(None, 0): 1.0, (None, 1): 1.0}, 1)]
    found = difference(a, b, "accuracy")
    assert found is not None
    assert (found.mean, found.examples) == (0.25, 2)


def test_only_common_examples_are_compared() -> None:
    some = {key: value for key, value in SCORES.items() if key[1] < 30}
    found = difference([accuracies(SCORES)], [accuracies(some)], "accuracy")
    assert found is not None
    assert found.examples == 30


def test_without_common_examples_there_is_no_test() -> None:
    assert difference([accuracies(SCORES, seed=1)], [accuracies(SCORES, seed=2)], "accuracy") is None
    assert difference([accuracies(SCORES, data="d")], [accuracies(SCORES, data="e")], "accuracy") is None
    assert difference([accuracies(SCORES)], [accuracies(SCORES)], "anls") is None


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
