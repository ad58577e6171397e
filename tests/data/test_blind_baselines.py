"""Baselines that read only the question, on a split small enough to count by hand."""

from __future__ import annotations

import pyarrow as pa

from simfl.data.base import Split
from simfl.data.baselines import blind_baselines, fit_baselines


def asked(*rows: tuple[str, str, str]) -> Split:
    """Build a split of (question, field, answer) rows."""
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


def test_majority_predicts_the_most_frequent_answer_of_each_field() -> None:
    asked_of = asked(("?", "colour", ""), ("?", "number", ""), ("?", "weather", ""))
    guesses = fit_baselines(TRAIN, seed=1)["majority"](asked_of)
    assert guesses == ["red", "4", "red"]  # an unknown field: the most frequent of all


def test_majority_scores_match_manual_counts() -> None:
    assert blind_baselines(TRAIN, VALID, seed=1)["majority"] == {"anls": 0.5, "accuracy": 0.5}


def test_question_only_learns_answers_implied_by_question_words() -> None:
    scores = blind_baselines(TRAIN, VALID, seed=1)["question_only"]
    assert scores == {"anls": 0.75, "accuracy": 0.75}  # all but the bird


def test_question_only_is_reproducible_from_its_seed() -> None:
    first, second = (fit_baselines(TRAIN, seed=3)["question_only"] for _ in range(2))
    assert first(VALID) == second(VALID)
