"""Baselines that see the question alone, on a split small enough to count by hand."""

from __future__ import annotations

import pyarrow as pa

from simfl.data.base import Split
from simfl.data.baselines import blind_baselines, fit_baselines


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
