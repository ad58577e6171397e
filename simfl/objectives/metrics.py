"""Scores of answers, and means over groups.

ANLS (Biten et al. 2019): one minus the edit distance over the longer length, the best over the answers, zero when too
small. The competition's code keeps a similarity of exactly ½, DUE's evaluator drops it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rapidfuzz.distance import Levenshtein

RULES = {"ge": lambda similarity: similarity >= 0.5, "gt": lambda similarity: similarity > 0.5}


def normal(text: str) -> str:
    """How answers are compared: lower case, no space around."""
    return text.lower().strip()


def anls(prediction: str, answers: Sequence[str], rule: str = "ge") -> float:
    """Similarity in [0, 1] to the nearest answer; 0 for nothing, for the literal "none", and below ½."""
    given = normal(prediction)
    if given in ("", "none"):
        return 0.0
    best = max((Levenshtein.normalized_similarity(given, normal(answer)) for answer in answers), default=0.0)
    return best if RULES[rule](best) else 0.0


def accuracy(prediction: str, answers: Sequence[str]) -> float:
    """1 if the prediction is one of the answers, but 0 for the literal "none"."""
    given = normal(prediction)
    return float(given != "none" and given in [normal(answer) for answer in answers])


def closeness(given: str, right: str) -> float:
    """One minus the edit distance over the longer length (ICDAR's 1 − N.E.D.); 1 for two empty texts."""
    return float(Levenshtein.normalized_similarity(given, right))


def group_means(values: np.ndarray, groups: Sequence[str]) -> dict[str, float]:
    """The mean of `values` [N] in each group, groups in sorted order."""
    names, index = np.unique(np.asarray(groups), return_inverse=True)
    means = np.bincount(index, values) / np.bincount(index)
    return dict(zip(names.tolist(), means.tolist(), strict=True))


def two_step_mean(values: np.ndarray, groups: Sequence[str]) -> float:
    """The mean over groups of each group's mean, so that a large group counts no more than a small one."""
    return float(np.mean(list(group_means(values, groups).values())))
