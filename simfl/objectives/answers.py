"""Answers as numbers: labels with scores, from the data or from lists of answers, one for all or one for each group.

A text of `answers` is a number by its place in a list; `counts` says how many people gave it, if not once for each
time it is there. An example without a list, or with choices of its own, has its `label`. A data set may also give
`labels` with `scores`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from simfl.errors import ConfigError, DataError
from simfl.metrics import normal

NONE = -1  # in place of a label
ALL = 2**31 - 1  # in place of a list's length: all answers of the model
Lists = Mapping[str, Sequence[str]]  # by group; "" holds for every group that has none of its own

SOFT: dict[str, Callable[[int, int], float]] = {  # score of an answer given by n of m people
    "vqa": lambda n, m: (0.0, 0.3, 0.6, 0.9)[n] if n < 4 else 1.0,  # ViLT's steps of min(1, n/3)
    "share": lambda n, m: n / m,
    "any": lambda n, m: 1.0,
}


@dataclass(frozen=True)
class Targets:
    """Right answers of some rows: labels [N, K] (−1 is none), scores [N, K] and the answers to choose from [N]."""

    labels: np.ndarray
    scores: np.ndarray
    num_answers: np.ndarray | None  # None: all classes of the model

    def scores_of(self, chosen: Sequence[int]) -> dict[str, np.ndarray]:
        """`accuracy`: the score of each chosen label, and `exact`: 1 where no other scores more."""
        hit = self.labels == np.asarray(chosen)[:, None]
        won = (self.scores * hit).sum(-1).astype(np.float64)
        return {"accuracy": won, "exact": ((won > 0) & (won >= self.scores.max(-1))).astype(np.float64)}


def read_lists(path: str | tuple[str, ...] | None) -> Lists:
    """A text file with an answer a line, or JSON: a list, or a mapping of groups to lists. ConfigError if neither.

    A tuple is the list itself; None is no list.
    """
    if path is None:
        return {}
    if isinstance(path, tuple):
        return {"": path}
    try:
        text = Path(path).read_text()
        found = json.loads(text) if path.endswith(".json") else text.splitlines()
    except (OSError, ValueError) as error:
        raise ConfigError(f"objective.answers: {path} cannot be read: {error}") from error
    return found if isinstance(found, dict) else {"": found}


def top_answers(split: Any, most: int, by: str | None = None) -> dict[str, list[str]]:
    """The most frequent first answers of a training split, those of each value of `by`; ties in the text's order."""
    texts = [answers[0] if answers else "" for answers in split.examples["answers"].to_pylist()]
    groups = split.examples[by].to_pylist() if by else [""] * len(texts)
    found: dict[str, list[str]] = {}
    for name in sorted(set(groups)):
        counts = Counter(normal(t) for t, g in zip(texts, groups, strict=True) if g == name and t)
        found[name] = [text for text, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:most]]
    return found


def people(examples: Any) -> list[Counter[str]]:
    """How many people gave each answer to each question."""
    answers = examples["answers"].to_pylist()
    given = examples["counts"].to_pylist() if "counts" in examples.column_names else [None] * len(answers)
    found = []
    for texts, counts in zip(answers, given, strict=True):
        tally: Counter[str] = Counter()
        for text, count in zip(texts, counts or [1] * len(texts), strict=True):
            tally[normal(text)] += count
        found.append(tally)
    return found


def groups_of(examples: Any, by: str) -> list[str]:
    """The value of a column for each example; "" for all where there is no such column."""
    return examples[by].to_pylist() if by in examples.column_names else [""] * examples.num_rows


def targets(examples: Any, lists: Lists, soft: str, by: str) -> Targets:
    """The targets of a table of examples; `by` is the column that names an example's list.

    DataError where an example has neither a list nor a label.
    """
    names = examples.column_names
    own = examples["num_answers"].to_numpy().astype(np.int64) if "num_answers" in names else None
    if "labels" in names and "scores" in names:
        labels = _padded(examples["labels"].to_pylist(), NONE, np.int64)
        return Targets(labels, _padded(examples["scores"].to_pylist(), 0, np.float32), own)
    number = {name: {normal(text): k for k, text in enumerate(answers)} for name, answers in lists.items()}
    told = people(examples) if lists and "answers" in names else [None] * examples.num_rows
    rows = zip(groups_of(examples, by), told, _column(examples, "label"), _column(examples, "choices"), strict=True)
    found, sizes = [], []
    for row, (group, tally, label, choices) in enumerate(rows):
        known = number.get(group, number.get("")) if not choices else None
        if tally is not None and known is not None:
            total, kept = tally.total(), sorted((known[text], n) for text, n in tally.items() if text in known)
            found.append([(answer, SOFT[soft](n, total)) for answer, n in kept])
            sizes.append(len(known))
        elif "label" in names:
            found.append([] if label is None or label < 0 else [(label, 1.0)])
            sizes.append(len(choices) if choices else int(own[row]) if own is not None else ALL)
        else:
            raise DataError(_nothing(group, lists, names))
    labels = _padded([[label for label, _ in row] for row in found], NONE, np.int64)
    scores = _padded([[score for _, score in row] for row in found], 0, np.float32)
    return Targets(labels, scores, None if set(sizes) <= {ALL} else np.array(sizes, np.int64))


def _nothing(group: str, lists: Lists, names: list[str]) -> str:
    if lists and "answers" in names:
        return f"answers: there is no list for the group {group!r}; there are lists for {sorted(lists)}"
    hint = "; give a list under objective.answers" if "answers" in names else ""
    return f"answers: the examples have neither 'label' nor 'labels' and 'scores', but {names}{hint}"


def _column(examples: Any, name: str) -> list[Any]:
    return examples[name].to_pylist() if name in examples.column_names else [None] * examples.num_rows


def _padded(rows: list[list[Any]], filler: int, dtype: type) -> np.ndarray:
    table: np.ndarray = np.full((len(rows), max(map(len, rows), default=1) or 1), filler, dtype)
    for row, values in enumerate(rows):
        table[row, : len(values)] = values
    return table
