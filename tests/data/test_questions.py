"""Answers of several annotators."""

import pytest

from simfl.data.io.questions import count_answers
from simfl.errors import DataError


def test_count_answers_orders_by_frequency_then_position():
    given = [{"answer": a} for a in ("red", "blue", "red", " red ", "green", "blue", "", "x")]
    assert count_answers("f row 0", given) == (["red", "blue", "green", "x"], [3, 2, 1, 1])
    assert count_answers("f row 0", ["b", "a"]) == (["b", "a"], [1, 1])


def test_count_answers_returns_nothing_for_withheld_answers():
    assert count_answers("f row 0", None) == ([], [])


def test_count_answers_refuses_other_types():
    with pytest.raises(DataError, match="f row 0: answers is str, expected a list"):
        count_answers("f row 0", "red")
    with pytest.raises(DataError, match="f row 0: answers 1 is 3, expected text"):
        count_answers("f row 0", ["a", {"answer": 3}])
