"""What a table is wanted to have, held to the runs that are there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from fakes import experiment, run, then
from test_comparison import GRID, result

from simfl.errors import ConfigError
from simfl.experiment import Evaluate
from simfl.reports.results import results_of
from simfl.reports.table_spec import TableSpec, met, scores_of

DONE = [one for one in GRID if one.status == "completed"]


def test_a_score_that_no_run_has_though_all_ended_well_is_one_line() -> None:
    with pytest.raises(
        ConfigError, match=r"^table.metrics: no run has a score 'anls:worst'; allowed: anls, exact, test.anls$"
    ):
        met(TableSpec(("anls", "anls:worst")), [replace(one, told=one.told) for one in DONE])
    with pytest.raises(ConfigError, match=r"^table.against: no line has 'b_y'; did you mean 'b_x'.$"):
        met(TableSpec((), "b_y"), DONE)


def test_of_runs_that_have_not_ended_well_a_score_may_be_missing() -> None:
    """The third is only of the run that failed."""
    assert met(TableSpec(("anls", "own.anls"), "a"), GRID) == TableSpec(("anls",), "a")
    assert met(TableSpec(("own.anls",)), [result("c", None, variant="c")]) == TableSpec()


def test_the_scores_that_are_told_beforehand_are_those_of_the_summary(tmp_path: Path) -> None:
    """Of two phases and two models, on clients that are told apart."""
    case = experiment(evaluate=Evaluate(models=("global", "local"), splits=("valid", "train"), every=0), rounds=1)
    case = then(case, experiment(rounds=1))
    run(case, tmp_path)
    (found,) = results_of([tmp_path])
    assert set(scores_of(case)) == set(found.scores)
    assert "train.local.accuracy:tenth" in found.scores
