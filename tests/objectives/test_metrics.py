"""ANLS and accuracy by hand."""

from __future__ import annotations

import pytest

from simfl.objectives.docvqa import accuracy, anls


@pytest.mark.parametrize(
    ("prediction", "answers", "score"),
    [
        ("Total", ["total "], 1.0),
        ("12.50", ["12.60"], 0.8),  # one edit in five
        ("abcd", ["wxyz", "abcx"], 0.75),  # the nearest answer counts
        ("kitten", ["sitting"], 4 / 7),  # three edits in seven
        ("abc", ["xyz"], 0.0),
        ("abcde", ["abxyz"], 0.0),  # 0.4 is below one half
        ("", ["a"], 0.0),
        ("None", ["none"], 0.0),
        ("a", [], 0.0),
    ],
)
def test_anls_by_hand(prediction: str, answers: list[str], score: float) -> None:
    assert anls(prediction, answers) == pytest.approx(score)


def test_the_anls_rule_decides_on_a_similarity_of_one_half() -> None:
    assert anls("ab", ["ac"], "ge") == 0.5
    assert anls("ab", ["ac"], "gt") == 0.0


def test_accuracy_ignores_case_and_surrounding_whitespace() -> None:
    assert accuracy(" Yes", ["no", "YES"]) == 1
    assert accuracy("yes!", ["yes"]) == 0
    assert accuracy("none", ["None"]) == 0
