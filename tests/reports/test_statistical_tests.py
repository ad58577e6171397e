"""Tests of differences: the hierarchical bootstrap against its draws, Student's t, Holm's rule, false alarms."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks.false_alarms import Setting, false_alarms
from simfl.reports.statistical_tests import hierarchical_bootstrap, holm, student_p, student_quantile


def test_equal_scores_have_no_difference() -> None:
    found = hierarchical_bootstrap(np.zeros((3, 20)))
    assert (found.mean, found.error, found.p, found.seeds, found.examples) == (0.0, 0.0, 1.0, 3, 20)


def test_a_difference_without_any_chance_is_certain() -> None:
    found = hierarchical_bootstrap(np.full((3, 10), 0.25))
    assert (found.mean, found.p) == (0.25, 0.0)


def test_with_equal_examples_the_test_is_students_over_the_seeds() -> None:
    """Means .1, .2, .3: mean .2, variance .01, error √(.01/3), t = 3.46 with 2 degrees of freedom."""
    found = hierarchical_bootstrap(np.repeat([[0.1], [0.2], [0.3]], 5, 1))
    assert found.error == pytest.approx(math.sqrt(0.01 / 3))
    assert found.p == pytest.approx(student_p(0.2 / found.error, 2))
    assert 0.05 < found.p < 0.1


def test_three_equal_signs_are_no_evidence() -> None:
    assert hierarchical_bootstrap(np.repeat([[0.1], [0.5], [0.9]], 5, 1)).p > 0.05


@pytest.mark.parametrize("holes", [False, True])
def test_the_error_is_that_of_draws_of_seeds_and_examples(holes: bool) -> None:
    generator = np.random.default_rng(1)
    values = generator.normal(size=(4, 1)) * 0.3 + generator.normal(size=30) * 0.5 + generator.normal(size=(4, 30))
    if holes:
        values[generator.random(values.shape) < 0.3] = np.nan
    means = []
    for _ in range(4000):
        rows, seeds = generator.integers(0, 30, 30), generator.integers(0, 4, 4)
        means.append(np.nanmean(values[seeds][:, rows], 1).mean())
    assert hierarchical_bootstrap(values).error == pytest.approx(np.std(means) * math.sqrt(4 / 3), rel=0.05)


@pytest.mark.parametrize(
    ("t", "degrees", "p"), [(12.706, 1, 0.05), (4.3027, 2, 0.05), (3.1824, 3, 0.05), (2.2281, 10, 0.05), (0.0, 2, 1.0)]
)
def test_students_p_has_the_published_values(t: float, degrees: int, p: float) -> None:
    assert student_p(t, degrees) == pytest.approx(p, abs=1e-5)
    assert student_p(-t, degrees) == student_p(t, degrees)
    assert p == 1 or student_quantile(p, degrees) == pytest.approx(t, abs=1e-3)


def test_holms_rule_by_hand() -> None:
    """Sorted .01, .03, .04 times 3, 2, 1 is .03, .06, .04, and never below an earlier one."""
    assert holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []


@pytest.mark.parametrize("setting", [Setting(3, 1, 120, 60), Setting(3, 5, 60, 60), Setting(5, 1, 120, 60)])
@pytest.mark.parametrize("deviation", [0.0, 0.03, 0.2])
def test_variants_that_differ_by_their_seeds_alone_are_rarely_marked(setting: Setting, deviation: float) -> None:
    assert false_alarms(setting, deviation, tables=100) <= 0.05
