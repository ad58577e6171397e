"""A simple look at a page: the answer stands beside or below the words that the question names.

Each word of the page is scored by the rarest word of the question on its line, plus the rarest one above it in its
column, plus how near it is to where answers to this kind of question stood in training. Kinds with few different
answers (yes and no) get the most frequent one. Nothing here is tuned to a data set.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from simfl.data.base import Split

FEW = 3  # different answers of a kind that is answered blindly
NARROWEST = 0.05  # standard deviation of a place, at least
GAP = 1.0  # between words of one answer, in heights of a word


Page = tuple[Sequence[str], np.ndarray]  # words, and their boxes: float64 [n, 4]


@dataclass(frozen=True)
class Kind:
    """What training tells of the answers to one kind of question."""

    usual: str  # the most frequent answer
    few: bool  # whether there are only a few
    words: int  # the usual number of words
    numeric: float  # share of answers that are numbers
    place: np.ndarray  # float64 [2]: mean middle of their first words on the page
    spread: np.ndarray  # float64 [2]: standard deviation


def informed(train: Split) -> Callable[[Split], list[str]]:
    """Fitted on a split whose pages have words: what gives an answer to each question of a split."""
    kinds = _kinds(train)
    rarity = _rarity(train)
    unknown = max(rarity.values(), default=1.0)

    def predict(split: Split) -> list[str]:
        assert split.documents is not None
        words, boxes = split.documents["words"].to_pylist(), split.documents["boxes"].to_pylist()
        pages = [(w, np.array(b, np.float64).reshape(-1, 4)) for w, b in zip(words, boxes, strict=True)]
        return [
            _answer(pages[row["document"]], row["question"], kinds.get(row["field"]), rarity, unknown)
            for row in split.examples.select(["document", "question", "field"]).to_pylist()
        ]

    return predict


def _plain(word: str) -> str:
    return word.lower().strip(".,:;?!()'\"")


def _is_number(text: str) -> bool:
    return bool(re.fullmatch(r"[^\w]*\d[\d.,%'/-]*", text))


def _rarity(train: Split) -> dict[str, float]:
    """log(pages / pages with the word)."""
    assert train.documents is not None
    pages = train.documents["words"].to_pylist()
    counts = Counter(word for page in pages for word in set(map(_plain, page)))
    return {word: float(np.log(len(pages) / count)) for word, count in counts.items()}


def _kinds(train: Split) -> dict[str, Kind]:
    assert train.documents is not None
    words, boxes = train.documents["words"].to_pylist(), train.documents["boxes"].to_pylist()
    answers: dict[str, list[str]] = defaultdict(list)
    places: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for row in train.examples.select(["document", "answers", "field"]).to_pylist():
        answer, page = row["answers"][0], row["document"]
        answers[row["field"]].append(answer)
        first = answer.split(" ")[0]
        if first in words[page]:
            left, top, right, bottom = boxes[page][4 * words[page].index(first) :][:4]
            places[row["field"]].append(((left + right) / 2, (top + bottom) / 2))
    return {field: _kind(told, places[field]) for field, told in answers.items()}


def _kind(answers: Sequence[str], places: Sequence[tuple[float, float]]) -> Kind:
    counts = Counter(answers)
    usual = min(counts, key=lambda answer: (-counts[answer], answer))
    where = np.array(places or [(0.5, 0.5)])
    return Kind(
        usual,
        len(counts) <= FEW,
        int(np.median([len(answer.split(" ")) for answer in answers])),
        float(np.mean([_is_number(answer) for answer in answers])),
        where.mean(0),
        np.maximum(where.std(0), NARROWEST),
    )


def _answer(page: Page, question: str, kind: Kind | None, rarity: dict[str, float], unknown: float) -> str:
    words, boxes = page
    if kind is None or kind.few or not words:
        return kind.usual if kind else ""
    asked = {_plain(word) for word in question.split()}
    plain = [_plain(word) for word in words]
    named = np.array([word in asked for word in plain])
    weight = np.array([rarity.get(word, unknown) for word in plain])
    middle = np.stack([boxes[:, 0] + boxes[:, 2], boxes[:, 1] + boxes[:, 3]], 1) / 2
    score = -0.5 * (((middle - kind.place) / kind.spread) ** 2).sum(1)
    if named.any():
        found = boxes[named]
        height = boxes[:, 3] - boxes[:, 1]
        beside = np.abs(middle[:, None, 1] - middle[None, named, 1]) < 0.5 * height[:, None]
        below = (boxes[:, None, 0] < found[None, :, 2]) & (boxes[:, None, 2] > found[None, :, 0])
        below &= middle[:, None, 1] > middle[None, named, 1]
        score += (beside * weight[named]).max(1) + (below * weight[named]).max(1)
    numeric = np.array([_is_number(word) for word in words])
    wrong = named | (~numeric if kind.numeric > 0.9 else numeric if kind.numeric < 0.1 else np.zeros(len(words), bool))
    score[wrong] = -np.inf
    best = int(score.argmax())
    return kind.usual if wrong.all() else _run(words, boxes, best, kind.words)


def _run(words: Sequence[str], boxes: np.ndarray, first: int, count: int) -> str:
    """So many words from this one on, as long as each stands right after the one before."""
    last = first
    while last + 1 < len(words) and last + 1 - first < count:
        _, top, right, bottom = boxes[last]
        left, next_top = boxes[last + 1][:2]
        if abs(next_top - top) > 0.5 * (bottom - top) or not -0.01 <= left - right < GAP * (bottom - top):
            break
        last += 1
    return " ".join(words[first : last + 1])
