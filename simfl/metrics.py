"""Scores of a predicted text: edit distance, ANLS, exact match, ROUGE-L."""

from __future__ import annotations

from collections.abc import Sequence

from rapidfuzz.distance import LCSseq, Levenshtein

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


def normalized_match(prediction: str, answers: Sequence[str]) -> float:
    """Return 1 if a prediction is one of the answers, without regard to case and surrounding whitespace."""
    return float(normalize_answer(prediction) in [normalize_answer(answer) for answer in answers])


def exact_match(prediction: str, answers: Sequence[str]) -> float:
    """Return 1 if a prediction is one of the answers, but for surrounding whitespace."""
    return float(prediction.strip() in [answer.strip() for answer in answers])


def rouge_l(prediction: str, answers: Sequence[str]) -> float:
    """Return ROUGE-L (Lin 2004) of a prediction and the nearest answer.

    It is the F1 of the longest common subsequence of words in lower case; 0 if either text has no word.
    """
    words = prediction.lower().split()
    return max((_lcs_f1(words, answer.lower().split()) for answer in answers), default=0.0)


def _lcs_f1(first: list[str], second: list[str]) -> float:
    common = LCSseq.similarity(first, second)
    return 2 * common / (len(first) + len(second)) if common else 0.0
