"""Overall scores of a run, and their names in summaries, tables and reports."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from simfl.data.base import HELD_OUT

TRUTH = ("id", "question", "answers", "label", "text")  # columns shown next to a prediction, where the data have them
LOSS = "loss"  # metric of the mean task loss
GLOBAL = "global"  # the model that all clients share
TWO_STEP = "two_step"  # `by` of the overall score with `evaluate.two_step`
CLIENT_MEAN = "client:two_step"  # `by` of the mean over the clients' means

Row = dict[str, Any]  # a row of a table: column -> value


@dataclass(frozen=True)
class Headline:
    """An overall score: of a model that all clients share over examples, of the clients' models their mean.

    With `evaluate.two_step`, the score of a shared model is the mean of the means of a column's values.
    """

    value: float
    clients: int | None = None  # clients over which the mean is taken; None for a model that all clients share


def headline(rows: Sequence[Row], metric: str, split: str, model: str) -> Headline | None:
    """Return the overall value of a metric; None if it was not evaluated."""
    wanted = {"metric": metric, "split": split, "model": model}
    found = [row for row in rows if _is_headline(row) and all(row[key] == value for key, value in wanted.items())]
    return next(iter(headlines(found, split).values())) if found else None


def headlines(rows: Iterable[Row], first_split: str) -> dict[str, Headline]:
    """Return overall scores by name; see `score_name`.

    Clients' models are scored client by client; their value is the mean over the clients that have examples.
    """
    found: dict[tuple[str, str, str], list[float]] = {}
    for row in sorted(filter(_is_headline, rows), key=lambda row: row["by"] == TWO_STEP):
        key, value = (row["split"], row["model"], row["metric"]), row["value"]
        found[key] = [value] if row["by"] == TWO_STEP else [*found.get(key, []), value]
    held_out = {model for split, model, _ in found if split == HELD_OUT}
    return {
        score_name(split, model, metric, first_split, model in held_out): Headline(
            float(np.mean(values)), None if model == GLOBAL else len(values)
        )
        for (split, model, metric), values in found.items()
    }


def score_name(split: str, model: str, metric: str, first: str, held_out: bool = False) -> str:
    """Return the name of an overall score: `anls`, else `split.anls`, `personal.anls`, `split.personal.anls`.

    The split is left out if it is the first evaluated one, and for clients' models if it is `heldout`.

    Args:
        split: The split.
        model: The model.
        metric: The metric.
        first: The first evaluated split.
        held_out: Whether clients' models are scored on held-out examples.
    """
    home = HELD_OUT if held_out and model != GLOBAL else first
    path = [split] if split != home else []
    return ".".join([*path, *([model] if model != GLOBAL else []), metric])


def _is_headline(row: Row) -> bool:
    return row["by"] in (("all", TWO_STEP) if row["model"] == GLOBAL else ("client",))
