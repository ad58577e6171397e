"""How alike texts are: one minus the edits between them over the longer length, and ANLS, which scores answers so."""

from __future__ import annotations

from collections.abc import Sequence

from rapidfuzz.distance import Levenshtein

RULES = {"ge": lambda similarity: similarity >= 0.5, "gt": lambda similarity: similarity > 0.5}


def similarity(given: str, right: str) -> float:
    """One minus the edit distance over the longer length (ICDAR's 1 − N.E.D.); 1 for two empty texts."""
    return float(Levenshtein.normalized_similarity(given, right))


def normal(text: str) -> str:
    """How answers are compared: lower case, no space around."""
    return text.lower().strip()


def anls(guess: str, answers: Sequence[str], rule: str = "ge") -> float:
    """ANLS of one guess (Biten et al. 2019): its similarity to the nearest answer; 0 for nothing, and below ½.

    The competition's code keeps a similarity of exactly ½ (`ge`), DUE's evaluator drops it (`gt`).
    """
    given = normal(guess)
    best = max((similarity(given, normal(answer)) for answer in answers), default=0.0) if given else 0.0
    return best if RULES[rule](best) else 0.0
