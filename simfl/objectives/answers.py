"""Answers as numbers: labels with scores, from the data or from lists of answers, one for all or one for each group.

Columns, in this order of preference: `labels` and `scores` (lists), `label` (one), or `answers` (texts), which need a
list. Several equal texts are several people's answers.
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
from simfl.objectives.metrics import normal

NONE = -1  # in place of a label
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


def top_answers(split: Any, most: int, group: str | None = None) -> dict[str, list[str]]:
    """The most frequent first answers of a training split, those of each group in `group`; ties in the text's order."""
    texts = [answers[0] if answers else "" for answers in split.examples["answers"].to_pylist()]
    groups = split.examples[group].to_pylist() if group else [""] * len(texts)
    found: dict[str, list[str]] = {}
    for name in sorted(set(groups)):
        counts = Counter(normal(t) for t, g in zip(texts, groups, strict=True) if g == name and t)
        found[name] = [text for text, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:most]]
    return found


def targets(examples: Any, lists: Lists, soft: str) -> Targets:
    """The targets of a table of examples. DataError where it has no answers, or where a group has no list."""
    names = examples.column_names
    if "answers" in names and lists:
        return _from_texts(examples, lists, SOFT[soft])
    own = examples["num_answers"].to_numpy().astype(np.int64) if "num_answers" in names else None
    if "labels" in names and "scores" in names:
        return Targets(
            _padded(examples["labels"].to_pylist(), NONE, np.int64),
            _padded(examples["scores"].to_pylist(), 0, np.float32),
            own,
        )
    if "label" in names:
        labels = examples["label"].to_numpy().astype(np.int64)[:, None]
        return Targets(labels, (labels >= 0).astype(np.float32), own)
    hint = "; give a list under objective.answers" if "answers" in names else ""
    raise DataError(f"answers: the examples have neither 'label' nor 'labels' and 'scores', but {names}{hint}")


def _from_texts(examples: Any, lists: Lists, score: Callable[[int, int], float]) -> Targets:
    number = {name: {normal(text): k for k, text in enumerate(answers)} for name, answers in lists.items()}
    groups = examples["group"].to_pylist() if "group" in examples.column_names else [""] * examples.num_rows
    labels, scores, sizes = [], [], []
    for group, answers in zip(groups, examples["answers"].to_pylist(), strict=True):
        known = number.get(group, number.get(""))
        if known is None:
            raise DataError(f"answers: there is no list for the group {group!r}; there are lists for {sorted(lists)}")
        counts = Counter(normal(text) for text in answers)
        kept = sorted((known[text], n) for text, n in counts.items() if text in known)
        labels.append([label for label, _ in kept])
        scores.append([score(n, len(answers)) for _, n in kept])
        sizes.append(len(known))
    return Targets(_padded(labels, NONE, np.int64), _padded(scores, 0, np.float32), np.array(sizes, np.int64))


def _padded(rows: list[list[Any]], filler: int, dtype: type) -> np.ndarray:
    table: np.ndarray = np.full((len(rows), max(map(len, rows), default=1) or 1), filler, dtype)
    for row, values in enumerate(rows):
        table[row, : len(values)] = values
    return table
