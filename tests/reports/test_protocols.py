"""Comparisons under budgets, targets and disturbances, on curves written by hand."""

from pathlib import Path

import pytest

from simfl.errors import ConfigError
from simfl.reports.curves import RunCurves
from simfl.reports.protocols import Protocol, compare_by, cost, parse_budget, spent, within
from simfl.reports.results import RunResult

CURVES = RunCurves(
    bytes={0: 0, 1: 1_000_000, 2: 2_000_000, 3: 3_000_000},
    epsilon={},
    scores={"accuracy": {0: 0.1, 1: 0.5, 2: 0.4, 3: 0.7}},
    loss={},
    seconds={0: 0.0, 1: 10.0, 2: 25.0, 3: 60.0},
    joules={0: 0.0, 1: 5.0, 2: 9.0, 3: 20.0},
)


@pytest.mark.parametrize(
    ("budget", "score"),
    [
        ({"seconds": 24.9}, 0.5),
        ({"seconds": 25.0}, 0.4),  # the last evaluation within the budget, not the best
        ({"MB": 2.5}, 0.4),
        ({"joules": 4.0}, 0.1),  # the score before the first round costs nothing
        ({"seconds": 100.0, "MB": 1.0}, 0.5),  # all budgets hold
        ({"rounds": 3.0}, 0.7),
    ],
)
def test_quality_under_budget(budget, score):
    assert within(CURVES, budget, ["accuracy"]) == {"accuracy": score}


def test_cost_to_target():
    assert cost(CURVES, "accuracy", 0.45) == {
        "reached": 1.0, "cost:rounds": 1.0, "cost:MB": 1.0, "cost:seconds": 10.0, "cost:joules": 5.0,
    }  # fmt: skip
    assert cost(CURVES, "accuracy", 0.6)["cost:seconds"] == 60.0
    assert cost(CURVES, "accuracy", 0.8) == {"reached": 0.0}


def test_runs_without_profiles_spend_no_seconds():
    plain = RunCurves(CURVES.bytes, {}, CURVES.scores, {})
    assert spent(plain, 2) == {"rounds": 2.0, "MB": 2.0}


@pytest.mark.parametrize(
    ("name", "budget", "target", "message"),
    [
        ("budget", {"second": 3.0}, None, "--budget: unknown 'second'; did you mean 'seconds'?"),
        ("budget", {}, None, "--budget: missing; give NAME=AMOUNT"),
        ("target", {}, None, "--reach: missing; give a score"),
        ("robustness", {}, 0.5, "--reach: has no effect with robustness"),
        ("target", {"MB": 1.0}, 0.5, "--budget: has no effect with target"),
    ],
)
def test_settings_of_other_protocols_are_refused(name, budget, target, message):
    with pytest.raises(ConfigError) as error:
        Protocol(name, budget, target)
    assert message in str(error.value)


@pytest.mark.parametrize("text", ["seconds", "seconds=", "seconds=-1", "seconds=x", "=3=4"])
def test_budgets_that_are_no_amounts_are_refused(text):
    with pytest.raises(ConfigError, match="allowed: NAME=AMOUNT"):
        parse_budget([text])
    assert parse_budget(["seconds=600", "MB=1.5"]) == {"seconds": 600.0, "MB": 1.5}


def result(setting: str, seed: int, score: float) -> RunResult:
    found = RunResult(f"{setting}-{seed}", {"variant": setting, "seed": seed}, Path("none"), "completed")
    found.__dict__["scores"] = {"accuracy": score}
    return found


def test_robustness_is_the_fraction_of_the_references_score_seed_by_seed():
    runs = [result("calm", 1, 0.5), result("calm", 2, 0.8), result("storm", 1, 0.4), result("storm", 2, 0.4)]
    found = compare_by(Protocol("robustness", {}), runs, ["accuracy"], "calm")
    calm, storm = found.rows
    assert calm.scores["accuracy retained"].values == (1.0, 1.0)
    assert storm.scores["accuracy retained"].values == pytest.approx((0.8, 0.5))
    alone = RunResult("calm-1", {"seed": 1}, Path("none"), "completed")
    alone.__dict__["scores"] = {"accuracy": 0.5}
    with pytest.raises(ConfigError, match="robustness compares rows with a reference"):
        compare_by(Protocol("robustness", {}), [alone], ["accuracy"], None)
