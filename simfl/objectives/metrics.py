"""Scores of answers. The literal "none" is what a reader says that found nothing, and never right."""

from __future__ import annotations

from collections.abc import Sequence

from simfl import metrics as similarity
from simfl.metrics import normal

NOTHING = "none"


def anls(prediction: str, answers: Sequence[str], rule: str = "ge") -> float:
    """ANLS (see `simfl.metrics`), in [0, 1]."""
    return 0.0 if normal(prediction) == NOTHING else similarity.anls(prediction, answers, rule)


def accuracy(prediction: str, answers: Sequence[str]) -> float:
    """1 if the prediction is one of the answers."""
    given = normal(prediction)
    return float(given != NOTHING and given in [normal(answer) for answer in answers])
