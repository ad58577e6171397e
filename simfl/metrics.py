"""Similarity of texts by edit distance, and ANLS, the answer score that is built on it."""

from __future__ import annotations

from collections.abc import Sequence

from rapidfuzz.distance import Levenshtein

RULES = {"ge": lambda similarity: similarity >= 0.5, "gt": lambda similarity: similarity > 0.5}


def similarity(a: str, b: str) -> float:
    """Return 1 minus the edit distance over the longer length (ICDAR's 1 − N.E.D.); 1 for two empty texts."""
    return float(Levenshtein.normalized_similarity(a, b))


def normalize_answer(text: str) -> str:
    """Return an answer in lower case without surrounding whitespace, for comparison."""
    return text.lower().strip()


def anls(prediction: str, answers: Sequence[str], rule: str = "ge") -> float:
    """Return the ANLS of one prediction (Biten et al. 2019): its similarity to the nearest answer.

    It is 0 for an empty prediction and for a similarity below ½. The competition's code keeps a similarity of exactly ½
    (`rule="ge"`), DUE's evaluator drops it (`rule="gt"`).
    """
    text = normalize_answer(prediction)
    best = max((similarity(text, normalize_answer(answer)) for answer in answers), default=0.0) if text else 0.0
    return best if RULES[rule](best) else 0.0
