"""Baselines: how well questions can be answered without looking at the page, and by a simple look.

`majority` gives the most frequent training answer of each kind of question. `question_only` is trained: a linear
classifier over the words and word pairs of the question, with the most frequent training answers as classes. A data set
on which either does well can be solved without its documents. `informed` looks for the page's words beside and below
those of the question (`informed.py`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow.compute as pc

from simfl.data.base import Split
from simfl.data.benchmarks.informed import informed
from simfl.metrics import anls, normal
from simfl.seeds import rng

CLASSES, FEATURES = 512, 4096  # at most; the most frequent in training
STEPS, BATCH, LEARNING_RATE = 400, 256, 10.0  # the rate falls to zero in a line

Predict = Callable[[Split], list[str]]  # an answer to each question of a split


def blind_baselines(train: Split, valid: Split, seed: int) -> dict[str, dict[str, Any]]:
    """`anls` and `accuracy` on `valid` of each baseline fitted on `train`."""
    return score_baselines(fit_baselines(train, seed), valid)


def fit_baselines(train: Split, seed: int) -> dict[str, Predict]:
    """The blind baselines by name, fitted on a question answering split; with `informed` where pages have words."""
    blind = {"majority": _majority(train), "question_only": _question_only(train, seed)}
    has_words = (
        train.documents is not None and (pc.max(pc.list_value_length(train.documents["words"])).as_py() or 0) > 0
    )
    return blind | ({"informed": informed(train)} if has_words else {})


def score_baselines(baselines: Mapping[str, Predict], split: Split, group: str = "") -> dict[str, dict[str, Any]]:
    """Mean `anls` and `accuracy` of each baseline on a split, and of each value of a column of its examples."""
    answers = split.examples["answers"].to_pylist()
    scores: dict[str, dict[str, Any]] = {}
    for name, predict in baselines.items():
        guesses = predict(split)
        right = [normal(g) in map(normal, a) for g, a in zip(guesses, answers, strict=True)]
        scores[name] = {
            "anls": float(np.mean([anls(g, a) for g, a in zip(guesses, answers, strict=True)])),
            "accuracy": float(np.mean(right)),
        }
        if group:
            scores[name][f"accuracy by {group}"] = _by(split.examples[group].to_pylist(), right)
    return scores


def _by(values: Sequence[str], right: Sequence[bool]) -> dict[str, float]:
    held: dict[str, list[bool]] = {}
    for value, is_right in zip(values, right, strict=True):
        held.setdefault(value, []).append(is_right)
    return {value: float(np.mean(held[value])) for value in sorted(held)}


def _first_answers(split: Split) -> list[str]:
    return [answers[0] for answers in split.examples["answers"].to_pylist()]


def _frequent(items: Counter[str], most: int) -> list[str]:
    return sorted(items, key=lambda item: (-items[item], item))[:most]


def _majority(train: Split) -> Predict:
    by_field: dict[str, Counter[str]] = {}
    answers = _first_answers(train)
    for field, answer in zip(train.examples["field"].to_pylist(), answers, strict=True):
        by_field.setdefault(field, Counter())[answer] += 1
    best = {field: _frequent(counts, 1)[0] for field, counts in by_field.items()}
    overall = _frequent(Counter(answers), 1)[0]
    return lambda split: [best.get(field, overall) for field in split.examples["field"].to_pylist()]


def _terms(question: str) -> list[str]:
    words = re.findall(r"\w+", question.lower())
    return [*words, *(f"{a} {b}" for a, b in pairwise(words))]


def _question_only(train: Split, seed: int) -> Predict:
    """Multinomial logistic regression on bags of words and word pairs, by SGD."""
    import torch  # here: processes that only draw pages need not wait for it

    questions = train.examples["question"].to_pylist()
    terms = Counter(term for question in questions for term in set(_terms(question)))
    vocabulary = {term: i for i, term in enumerate(_frequent(terms, FEATURES))}
    answers = _first_answers(train)
    classes = _frequent(Counter(answers), CLASSES)
    number = {answer: i for i, answer in enumerate(classes)}
    rows = [i for i, answer in enumerate(answers) if answer in number]
    bags = torch.from_numpy(_bags([questions[i] for i in rows], vocabulary))
    labels = torch.tensor([number[answers[i]] for i in rows])

    table = torch.zeros(len(vocabulary) + 2, len(classes), requires_grad=True)  # then the bias, then padding

    def logits(batch: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.embedding_bag(batch, table, mode="sum", padding_idx=len(vocabulary) + 1)

    random = rng(seed, "question only")
    for step in range(STEPS):
        chosen = torch.from_numpy(random.integers(len(rows), size=BATCH))
        loss = torch.nn.functional.cross_entropy(logits(bags[chosen]), labels[chosen])
        (gradient,) = torch.autograd.grad(loss, table)
        with torch.no_grad():
            table -= (
                LEARNING_RATE * (1 - step / STEPS) * gradient
            )  # plain SGD: importing torch.optim takes longer than all of this

    def predict(split: Split) -> list[str]:
        with torch.no_grad():
            best = logits(torch.from_numpy(_bags(split.examples["question"].to_pylist(), vocabulary))).argmax(1)
        return [classes[i] for i in best.tolist()]

    return predict


def _bags(questions: Sequence[str], vocabulary: dict[str, int]) -> np.ndarray:
    """Rows of term numbers, int64 [N, longest]: known terms, the bias, then padding."""
    bias, padding = len(vocabulary), len(vocabulary) + 1
    bags = [[*(vocabulary[t] for t in _terms(q) if t in vocabulary), bias] for q in questions]
    filled = np.full((len(bags), max(map(len, bags), default=1)), padding, np.int64)
    for row, bag in zip(filled, bags, strict=True):
        row[: len(bag)] = bag
    return filled
