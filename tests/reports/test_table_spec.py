"""The table spec of a sweep file, checked against its runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from fakes import experiment, run, then
from test_table import GRID, result

from simfl.errors import ConfigError
from simfl.experiment import Evaluate
from simfl.reports.results import results_of
from simfl.reports.table_spec import TableSpec, possible_scores, restrict_to_results

DONE = [one for one in GRID if one.status == "completed"]


def test_a_score_that_no_finished_run_has_raises_one_line() -> None:
    with pytest.raises(
        ConfigError, match=r"^table.metrics: no run has a score 'anls:worst'; allowed: anls, exact, test.anls$"
    ):
        restrict_to_results(TableSpec(("anls", "anls:worst")), [replace(one, given=one.given) for one in DONE])
    with pytest.raises(ConfigError, match=r"^table.against: no row has 'b_y'; did you mean 'b_x'.$"):
        restrict_to_results(TableSpec((), "b_y"), DONE)


def test_a_score_may_be_missing_while_runs_are_unfinished() -> None:
    """Only the failed run could have the score `own.anls`."""
    assert restrict_to_results(TableSpec(("anls", "own.anls"), "a"), GRID) == TableSpec(("anls",), "a")
    assert restrict_to_results(TableSpec(("own.anls",)), [result("c", None, variant="c")]) == TableSpec()


def test_the_possible_scores_are_those_of_the_summary(tmp_path: Path) -> None:
    """Two phases and two models, with scores per client."""
    case = experiment(evaluate=Evaluate(models=("global", "local"), splits=("valid", "train"), every=0), rounds=1)
    case = then(case, experiment(rounds=1))
    run(case, tmp_path)
    (found,) = results_of([tmp_path])
    assert set(possible_scores(case)) == set(found.scores)
    assert "train.local.accuracy:tenth" in found.scores
