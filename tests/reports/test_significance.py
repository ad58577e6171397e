"""Paired bootstrap and spread over clients, by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from fakes import experiment, run

from simfl.experiment import Evaluate
from simfl.reports.significance import Scored, bootstrap, difference, name_of, per_client, scored, spread
from simfl.runs.results import Run

SCORES = {(None, row): float(row % 2) for row in range(100)}


def of(scores: dict[tuple[int | None, int], float], seed: int = 1, data: str = "d") -> Scored:
    return Scored(seed, data, {"accuracy": scores})


def test_equal_scores_are_no_difference() -> None:
    found = bootstrap(np.arange(20.0), np.arange(20.0))
    assert (found.mean, found.low, found.high, found.p, found.examples) == (0.0, 0.0, 0.0, 1.0, 20)


def test_a_difference_in_every_example_is_as_sure_as_the_draws_allow() -> None:
    found = bootstrap(np.zeros(10), np.full(10, 0.25), draws=500)
    assert (found.mean, found.low, found.high, found.p) == (0.25, 0.25, 0.25, 1 / 500)


def test_the_share_of_draws_beyond_zero_is_that_of_a_coin() -> None:
    """n = 2, differences −1 and 3: the four equally likely draws have means −1, 1, 1, 3; p = 2 · 1/4."""
    found = bootstrap(np.array([1.0, 0.0]), np.array([0.0, 3.0]), draws=40_000)
    assert found.mean == 1.0
    assert found.p == pytest.approx(0.5, abs=0.02)  # its deviation is 2·√(.25·.75/40000) = .0043


def test_pairs_matter_and_not_the_difference_of_the_means_alone() -> None:
    """The same means, .50 and .55: sure where every pair that differs goes one mode, unsure where they go both."""
    a = np.tile([0.0, 1.0], 100)
    better = a.copy()
    better[:20:2] = 1.0
    shuffled = np.roll(better, 1)
    assert bootstrap(a, better).p < 0.01
    assert bootstrap(a, shuffled).p > 0.05
    assert bootstrap(a, better).mean == bootstrap(a, shuffled).mean == 0.05


def test_a_table_is_the_same_each_time() -> None:
    a, b = np.arange(50.0), np.arange(50.0)[::-1]
    assert bootstrap(a, b) == bootstrap(a, b)


def test_runs_are_paired_by_seed_and_data_and_examples_averaged_over_seeds() -> None:
    """Example 0: seeds 1 and 2 give .0 → 1. and 1. → 1., so −; mean difference .5. Example 1: 0. The mean is .25."""
    a = [of({(None, 0): 0.0, (None, 1): 1.0}, 1), of({(None, 0): 1.0, (None, 1): 1.0}, 2)]
    b = [of({(None, 0): 1.0, (None, 1): 1.0}, 2), of({(None, 0): 1.0, (None, 1): 1.0}, 1)]
    found = difference(a, b, "accuracy")
    assert found is not None
    assert (found.mean, found.examples) == (0.25, 2)


def test_only_common_examples_count() -> None:
    some = {key: value for key, value in SCORES.items() if key[1] < 30}
    found = difference([of(SCORES)], [of(some)], "accuracy")
    assert found is not None
    assert found.examples == 30


def test_nothing_in_common_is_no_test() -> None:
    assert difference([of(SCORES, seed=1)], [of(SCORES, seed=2)], "accuracy") is None
    assert difference([of(SCORES, data="d")], [of(SCORES, data="e")], "accuracy") is None
    assert difference([of(SCORES)], [of(SCORES)], "anls") is None


def test_names_are_those_of_summaries() -> None:
    assert name_of("valid", "global", "anls", "valid") == "anls"
    assert name_of("test", "personal", "anls", "valid") == "test.personal.anls"


def test_spread_by_hand() -> None:
    """Sorted .1 .2 .6 .7: a tenth of the way over three steps is .3 of the first; variance .26/4."""
    found = spread({3: 0.6, 1: 0.1, 2: 0.7, 0: 0.2})
    assert (found.worst, found.clients) == (0.1, 4)
    assert found.tenth == pytest.approx(0.13)
    assert found.deviation == pytest.approx((0.26 / 4) ** 0.5)


def test_a_run_keeps_each_examples_scores_at_its_end(tmp_path: Path) -> None:
    asked = Evaluate(every=1, models=("global", "local"))
    summary = run(experiment(evaluate=asked, rounds=2), tmp_path / "r")
    found = Run(tmp_path / "r")
    assert set(found.scores()["step"].to_pylist()) == {2}
    assert np.mean(list(scored(found).scores["accuracy"].values())) == pytest.approx(summary["final"]["accuracy"])
    clients = per_client(found)
    assert np.mean(list(clients["local.accuracy"].values())) == pytest.approx(summary["final"]["local.accuracy"])


def test_a_clients_examples_of_a_shared_model_are_those_of_its_groups(tmp_path: Path) -> None:
    run(experiment(rounds=1), tmp_path / "r")
    found = Run(tmp_path / "r")
    rows = found.scores().to_pylist()
    own = [row["accuracy"] for row in rows if row["by_group"].startswith("g4.")]
    assert len(own) == 6  # 60 examples, evenly of 10 clients
    assert per_client(found)["accuracy"][4] == pytest.approx(np.mean(own))
    assert len(per_client(found)["accuracy"]) == 10
