"""The similarity of texts, and ANLS by hand."""

from __future__ import annotations

import pytest

from simfl.metrics import anls, similarity


@pytest.mark.parametrize(
    ("given", "right", "score"),
    [
        ("kitten", "sitting", 4 / 7),  # three edits in seven letters
        ("ab", "", 0.0),
        ("", "", 1.0),
        ("Ab", "ab", 0.5),  # letters as they are
    ],
)
def test_likeness_is_one_minus_edits_over_the_longer_length(given: str, right: str, score: float) -> None:
    assert similarity(given, right) == pytest.approx(score)


@pytest.mark.parametrize(
    ("guess", "answers", "score"),
    [
        ("Total ", ["total"], 1.0),  # case and outer blanks do not count
        ("12.50", ["12.60"], 0.8),  # one edit of five
        ("12.50", ["99.99", "12.5"], 0.8),  # the nearest answer counts
        ("ab", ["ac"], 0.5),  # exactly at the threshold
        ("abc", ["axx"], 0.0),  # 1/3, below it
        ("", [""], 0.0),
    ],
)
def test_anls_by_hand(guess: str, answers: list[str], score: float) -> None:
    assert anls(guess, answers) == pytest.approx(score)
