"""Baselines that see the question alone, on a split small enough to count by hand."""

from __future__ import annotations

import pyarrow as pa
import pytest

from simfl.data.base import Split
from simfl.data.baselines import blind_baselines, fit_baselines, similarity


def asked(*rows: tuple[str, str, str]) -> Split:
    """A split of (question, field, answer)."""
    question, field, answer = zip(*rows, strict=True)
    return Split(pa.table({"question": question, "field": field, "answers": [[a] for a in answer]}))


TRAIN = asked(
    *[("What is the colour of apples?", "colour", "red")] * 3,
    *[("What is the colour of grass?", "colour", "green")] * 2,
    *[("How many legs has a dog?", "number", "4")] * 2,
)
VALID = asked(
    ("What is the colour of apples?", "colour", "red"),
    ("What is the colour of grass?", "colour", "green"),
    ("How many legs has a dog?", "number", "4"),
    ("How many legs has a bird?", "number", "2"),
)


def test_majority_gives_the_most_frequent_answer_of_each_field() -> None:
    asked_of = asked(("?", "colour", ""), ("?", "number", ""), ("?", "weather", ""))
    guesses = fit_baselines(TRAIN, seed=1)["majority"](asked_of)
    assert guesses == ["red", "4", "red"]  # an unknown field: the most frequent of all


def test_majority_scores_are_the_counted_ones() -> None:
    assert blind_baselines(TRAIN, VALID, seed=1)["majority"] == {"anls": 0.5, "accuracy": 0.5}


def test_the_trained_classifier_learns_what_the_words_of_a_question_tell() -> None:
    scores = blind_baselines(TRAIN, VALID, seed=1)["question_only"]
    assert scores == {"anls": 0.75, "accuracy": 0.75}  # all but the bird


def test_the_same_seed_gives_the_same_guesses() -> None:
    first, second = (fit_baselines(TRAIN, seed=3)["question_only"] for _ in range(2))
    assert first(VALID) == second(VALID)


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
def test_similarity_is_anls_by_hand(guess: str, answers: list[str], score: float) -> None:
    assert similarity(guess, answers) == pytest.approx(score)
