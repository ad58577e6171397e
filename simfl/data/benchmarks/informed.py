"""A simple page reader, as a baseline: the answer is next to or below the words that the question names.

Each word of the page gets the weight of the rarest word of the question on its line, plus the weight of the rarest one
above it in its column, plus a term for its distance to the mean position of answers of this kind in training. Kinds
with few different answers (yes and no) get the most frequent one. Nothing here is tuned to a data set.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from simfl.data.base import Split

FEW = 3  # a kind with at most this many different answers gets the most frequent one
MIN_DEVIATION = 0.05  # lower bound on the standard deviation of a position
MAX_GAP = 1.0  # between words of one answer, in heights of a word


Page = tuple[Sequence[str], np.ndarray]  # words, and their boxes: float64 [n, 4]


@dataclass(frozen=True)
class AnswerStatistics:
    """Statistics of the training answers to one kind of question."""

    most_frequent: str
    few: bool  # whether there are at most `FEW` different answers
    num_words: int  # median
    numeric: float  # share of answers that are numbers
    position: np.ndarray  # float64 [2]: mean centre of their first words on the page
    deviation: np.ndarray  # float64 [2]: standard deviation


@dataclass(frozen=True)
class WordWeights:
    """Weights of words, log(pages / pages with the word)."""

    known: dict[str, float]
    unknown: float  # weight of all other words: the largest weight

    def of(self, words: Sequence[str]) -> np.ndarray:
        """Return the weight of each word, float64 [n]."""
        return np.array([self.known.get(word, self.unknown) for word in words])


def informed(train: Split) -> Callable[[Split], list[str]]:
    """Fit the reader on a split whose pages have words; return a function that answers the questions of a split."""
    kinds = _statistics(train)
    weights = _word_weights(train)

    def predict(split: Split) -> list[str]:
        assert split.documents is not None
        words, boxes = split.documents["words"].to_pylist(), split.documents["boxes"].to_pylist()
        pages = [(w, np.array(b, np.float64).reshape(-1, 4)) for w, b in zip(words, boxes, strict=True)]
        return [
            _answer(pages[row["document"]], row["question"], kinds.get(row["field"]), weights)
            for row in split.examples.select(["document", "question", "field"]).to_pylist()
        ]

    return predict


def _normalize(word: str) -> str:
    return word.lower().strip(".,:;?!()'\"")


def _is_number(text: str) -> bool:
    return bool(re.fullmatch(r"[^\w]*\d[\d.,%'/-]*", text))


def _word_weights(train: Split) -> WordWeights:
    assert train.documents is not None
    pages = train.documents["words"].to_pylist()
    counts = Counter(word for page in pages for word in set(map(_normalize, page)))
    known = {word: float(np.log(len(pages) / count)) for word, count in counts.items()}
    return WordWeights(known, max(known.values(), default=1.0))


def _statistics(train: Split) -> dict[str, AnswerStatistics]:
    """Return the statistics of each kind of question."""
    assert train.documents is not None
    words, boxes = train.documents["words"].to_pylist(), train.documents["boxes"].to_pylist()
    answers: dict[str, list[str]] = defaultdict(list)
    positions: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for row in train.examples.select(["document", "answers", "field"]).to_pylist():
        answer, page = row["answers"][0], row["document"]
        answers[row["field"]].append(answer)
        first = answer.split(" ")[0]
        if first in words[page]:
            left, top, right, bottom = boxes[page][4 * words[page].index(first) :][:4]
            positions[row["field"]].append(((left + right) / 2, (top + bottom) / 2))
    return {field: _summarize(given, positions[field]) for field, given in answers.items()}


def _summarize(answers: Sequence[str], positions: Sequence[tuple[float, float]]) -> AnswerStatistics:
    counts = Counter(answers)
    known = np.array(positions or [(0.5, 0.5)])
    return AnswerStatistics(
        most_frequent=min(counts, key=lambda answer: (-counts[answer], answer)),
        few=len(counts) <= FEW,
        num_words=int(np.median([len(answer.split(" ")) for answer in answers])),
        numeric=float(np.mean([_is_number(answer) for answer in answers])),
        position=known.mean(0),
        deviation=np.maximum(known.std(0), MIN_DEVIATION),
    )


def _answer(page: Page, question: str, kind: AnswerStatistics | None, weights: WordWeights) -> str:
    words, boxes = page
    if kind is None or kind.few or not words:
        return kind.most_frequent if kind else ""
    in_question = {_normalize(word) for word in question.split()}
    normal = [_normalize(word) for word in words]
    named = np.array([word in in_question for word in normal])
    weight = weights.of(normal)
    centre = np.stack([boxes[:, 0] + boxes[:, 2], boxes[:, 1] + boxes[:, 3]], 1) / 2
    score = -0.5 * (((centre - kind.position) / kind.deviation) ** 2).sum(1)
    if named.any():
        score += _neighbour_score(boxes, centre, named, weight)
    numeric = np.array([_is_number(word) for word in words])
    wrong = named | (~numeric if kind.numeric > 0.9 else numeric if kind.numeric < 0.1 else np.zeros(len(words), bool))
    score[wrong] = -np.inf
    best = int(score.argmax())
    return kind.most_frequent if wrong.all() else _phrase(words, boxes, best, kind.num_words)


def _neighbour_score(boxes: np.ndarray, centre: np.ndarray, named: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Return, for each word, the largest weight of a named word on its line plus that of one above it, float64 [n]."""
    found = boxes[named]
    height = boxes[:, 3] - boxes[:, 1]
    same_line = np.abs(centre[:, None, 1] - centre[None, named, 1]) < 0.5 * height[:, None]
    below = (boxes[:, None, 0] < found[None, :, 2]) & (boxes[:, None, 2] > found[None, :, 0])
    below &= centre[:, None, 1] > centre[None, named, 1]
    return np.asarray((same_line * weight[named]).max(1) + (below * weight[named]).max(1))


def _phrase(words: Sequence[str], boxes: np.ndarray, first: int, count: int) -> str:
    """Join at most `count` words from `first` on, as long as each follows closely on the same line."""
    last = first
    while last + 1 < len(words) and last + 1 - first < count:
        _, top, right, bottom = boxes[last]
        left, next_top = boxes[last + 1][:2]
        if abs(next_top - top) > 0.5 * (bottom - top) or not -0.01 <= left - right < MAX_GAP * (bottom - top):
            break
        last += 1
    return " ".join(words[first : last + 1])
