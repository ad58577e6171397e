"""Answers of many annotators."""

import pytest

from simfl.data.readers.vqa import tally
from simfl.errors import DataError


def test_answers_are_counted_most_frequent_first_and_ties_as_given():
    given = [{"answer": a} for a in ("red", "blue", "red", " red ", "green", "blue", "", "x")]
    assert tally("f row 0", given) == (["red", "blue", "green", "x"], [3, 2, 1, 1])
    assert tally("f row 0", ["b", "a"]) == (["b", "a"], [1, 1])


def test_withheld_answers_are_none():
    assert tally("f row 0", None) == ([], [])


def test_what_is_no_answer_is_refused():
    with pytest.raises(DataError, match="f row 0: answers is str, a list is needed"):
        tally("f row 0", "red")
    with pytest.raises(DataError, match="f row 0: answers 1 is 3, text is needed"):
        tally("f row 0", ["a", {"answer": 3}])
