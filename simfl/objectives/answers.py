"""Answers as class labels with scores, from the data or from lists of answers, one list for all or one per group.

The label of a text in the column `answers` is its index in a list. The column `counts` has the number of people who
gave each answer; without it, an answer counts once per occurrence. An example without a list, or with `choices` of its
own, has a `label`. A data set can also provide `labels` with `scores`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from simfl.errors import ConfigError, DataError
from simfl.metrics import normalize_answer
from simfl.objectives.vqa_text import normalize_vqa_answer

NO_LABEL = -1
ALL_ANSWERS = 2**31 - 1  # length of a list that contains all classes of the model
Lists = Mapping[str, Sequence[str]]  # lists by group; "" is the list of groups without one

SoftRule = Literal["auto", "vqa", "share", "any"]
Normalization = Literal["plain", "vqa"]
ENOUGH_PEOPLE = 4  # number of people from which the rule of VQA gives 1 to what all of them say


def _vqa_score(n: int, m: int) -> float:
    """Return the mean of min(1, n/3) over all sets of nine of ten people, as the VQA challenge and ViLT do."""
    return (0.0, 0.3, 0.6, 0.9)[n] if n < ENOUGH_PEOPLE else 1.0


SOFT: dict[str, Callable[[int, int], float]] = {  # score of an answer that n of m people gave
    "auto": lambda n, m: _vqa_score(n, m) if m >= ENOUGH_PEOPLE else n / m,
    "vqa": _vqa_score,
    "share": lambda n, m: n / m,
    "any": lambda n, m: 1.0,
}
NORMALIZE: dict[str, Callable[[str], str]] = {"plain": normalize_answer, "vqa": normalize_vqa_answer}


@dataclass(frozen=True)
class Targets:
    """Correct answers of N rows, at most K each.

    Attributes:
        labels: [N, K]; −1 is padding.
        scores: [N, K].
        num_answers: Number of answers to choose from [N]; None: all classes of the model.
    """

    labels: np.ndarray
    scores: np.ndarray
    num_answers: np.ndarray | None

    def best(self) -> list[int]:
        """Return the label with the highest score of each row; `NO_LABEL` where there is none."""
        rows = np.arange(len(self.labels))
        found: list[int] = self.labels[rows, self.scores.argmax(-1)].tolist()
        return found

    def scores_of(self, chosen: Sequence[int]) -> dict[str, np.ndarray]:
        """Return `accuracy`, the score of each chosen label, and `exact`, 1 if no other label has a higher score."""
        hit = self.labels == np.asarray(chosen)[:, None]
        score = (self.scores * hit).sum(-1).astype(np.float64)
        return {"accuracy": score, "exact": ((score > 0) & (score >= self.scores.max(-1))).astype(np.float64)}


@dataclass(frozen=True)
class AnswerRule:
    """The rule by which answers become labels with scores.

    Attributes:
        lists: Lists of answers by group; empty: the data has labels.
        by: Column that names the list of an example.
        soft: Rule for the score of an answer by the number of people who gave it.
        normalization: Rule by which texts are compared.
    """

    lists: Lists
    by: str = ""
    soft: SoftRule = "auto"
    normalization: Normalization = "plain"

    def labels_by_text(self) -> dict[str, dict[str, int]]:
        """Return the label of each normalized text, by group.

        Raises:
            ConfigError: Two answers of a list are equal once normalized, so that only one of them could be right.
        """
        normalize = NORMALIZE[self.normalization]
        found: dict[str, dict[str, int]] = {}
        for group, answers in self.lists.items():
            labels: dict[str, int] = {}
            for label, text in enumerate(answers):
                same = labels.setdefault(normalize(text), label)
                if same != label:
                    where = f" of {group!r}" if group else ""
                    raise ConfigError(
                        f"objective.answers: {answers[same]!r} and {text!r} are the same answer{where}, with"
                        f" normalize: {self.normalization}; list each answer once"
                    )
            found[group] = labels
        return found


def read_lists(path: str | tuple[str, ...] | None) -> Lists:
    """Read lists of answers from a text file with one answer per line, or JSON (a list, or lists by group).

    A tuple is a list itself; None is no list. Raises ConfigError if the file cannot be read.
    """
    if path is None:
        return {}
    if isinstance(path, tuple):
        return {"": path}
    try:
        text = Path(path).read_text()
        lists = json.loads(text) if path.endswith(".json") else text.splitlines()
    except (OSError, ValueError) as error:
        raise ConfigError(f"objective.answers: {path} cannot be read: {error}") from error
    return lists if isinstance(lists, dict) else {"": lists}


def top_answers(
    split: Any, num_answers: int, by: str | None = None, normalization: Normalization = "plain"
) -> dict[str, list[str]]:
    """Return the most frequent first answers of a split, per value of the column `by`; ties in alphabetical order."""
    normalize = NORMALIZE[normalization]
    texts = [answers[0] if answers else "" for answers in answer_lists(split.examples)]
    groups = split.examples[by].to_pylist() if by else [""] * len(texts)
    lists: dict[str, list[str]] = {}
    for name in sorted(set(groups)):
        counts = Counter(normalize(t) for t, g in zip(texts, groups, strict=True) if g == name and t)
        lists[name] = [text for text, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:num_answers]]
    return lists


def answer_lists(examples: Any) -> list[list[str]]:
    """Return the answers of each example; a text alone is one answer, null is none."""
    given = examples["answers"].to_pylist()
    return [[answers] if isinstance(answers, str) else answers or [] for answers in given]


def count_answers(examples: Any, normalization: Normalization = "plain") -> list[Counter[str]]:
    """Return, for each example, how many people gave each answer. DataError if counts and answers do not match."""
    normalize = NORMALIZE[normalization]
    answers = answer_lists(examples)
    given = examples["counts"].to_pylist() if "counts" in examples.column_names else [None] * len(answers)
    counters = []
    for row, (texts, counts) in enumerate(zip(answers, given, strict=True)):
        counter: Counter[str] = Counter()
        if counts and (len(counts) != len(texts) or not all(count is not None and count > 0 for count in counts)):
            raise DataError(
                f"answers: row {row} has {len(texts)} answers with counts {counts}, expected one each, above 0"
            )
        for text, count in zip(texts, counts or [1] * len(texts), strict=True):
            counter[normalize(text)] += count
        counters.append(counter)
    return counters


def group_names(examples: Any, by: str) -> list[str]:
    """Return the value of a column for each example, or "" for all without this column."""
    return examples[by].to_pylist() if by in examples.column_names else [""] * examples.num_rows


def build_targets(examples: Any, rule: AnswerRule) -> Targets:
    """Return the targets of a table of examples.

    Raises DataError for an example with neither a list nor a label.
    """
    names = examples.column_names
    num_answers = examples["num_answers"].to_numpy().astype(np.int64) if "num_answers" in names else None
    if "labels" in names and "scores" in names:
        labels = _padded(examples["labels"].to_pylist(), NO_LABEL, np.int64)
        return Targets(labels, _padded(examples["scores"].to_pylist(), 0, np.float32), num_answers)
    label_of, listed = rule.labels_by_text(), bool(rule.lists) and "answers" in names
    counters = count_answers(examples, rule.normalization) if listed else [None] * examples.num_rows
    columns = group_names(examples, rule.by), counters, _column(examples, "label"), _column(examples, "choices")
    found, sizes = [], []
    for row, (group, counter, label, choices) in enumerate(zip(*columns, strict=True)):
        known = label_of.get(group, label_of.get("")) if not choices else None
        if counter is not None and known is not None:
            total, kept = counter.total(), sorted((known[text], n) for text, n in counter.items() if text in known)
            found.append([(answer, SOFT[rule.soft](n, total)) for answer, n in kept])
            sizes.append(len(known))
        elif "label" in names:
            size = len(choices) if choices else int(num_answers[row]) if num_answers is not None else ALL_ANSWERS
            if isinstance(label, str) or (label is not None and not (label < size and label == int(label))):
                limit = f"0 to {size - 1}" if size < ALL_ANSWERS else "a whole number, or -1 for none"
                raise DataError(f"answers: row {row}, column 'label' is {label!r}, allowed: {limit}")
            found.append([] if label is None or label < 0 else [(int(label), 1.0)])
            sizes.append(size)
        else:
            raise DataError(_missing_message(group, rule.lists, names))
    labels = _padded([[label for label, _ in row] for row in found], NO_LABEL, np.int64)
    scores = _padded([[score for _, score in row] for row in found], 0, np.float32)
    return Targets(labels, scores, None if set(sizes) <= {ALL_ANSWERS} else np.array(sizes, np.int64))


def _missing_message(group: str, lists: Lists, names: list[str]) -> str:
    if lists and "answers" in names:
        return f"answers: no list for the group {group!r}; allowed: {sorted(lists)}"
    hint = "; give a list under objective.answers" if "answers" in names else ""
    return f"answers: the examples have neither 'label' nor 'labels' and 'scores'; their columns: {names}{hint}"


def _column(examples: Any, name: str) -> list[Any]:
    return examples[name].to_pylist() if name in examples.column_names else [None] * examples.num_rows


def _padded(rows: list[list[Any]], filler: int, dtype: type) -> np.ndarray:
    table: np.ndarray = np.full((len(rows), max(map(len, rows), default=1) or 1), filler, dtype)
    for row, values in enumerate(rows):
        table[row, : len(values)] = values
    return table
