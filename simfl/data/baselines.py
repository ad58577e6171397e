"""Baselines of question answering data sets: how well questions are answered without reading the page.

`majority` predicts the most frequent training answer of each kind of question. `question_only` is a linear classifier
over the words and word pairs of the question, whose classes are the most frequent training answers. If either does
well, the data set can be solved without its documents. `informed` searches the page's words next to and below those of
the question (`simfl.data.benchmarks.informed`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import numpy as np
import pyarrow.compute as pc

from simfl.data.base import Split
from simfl.data.benchmarks.informed import informed
from simfl.metrics import anls, normalize_answer
from simfl.seeds import rng

MAX_CLASSES, MAX_FEATURES = 512, 4096  # the most frequent ones in training
STEPS, BATCH_SIZE, LEARNING_RATE = 400, 256, 10.0  # the rate decays linearly to zero

Predict = Callable[[Split], list[str]]  # returns an answer to each question of a split
Scores = dict[str, float | dict[str, float]]  # metric -> value, or value by group


def blind_baselines(train: Split, valid: Split, seed: int) -> dict[str, Scores]:
    """Return `anls` and `accuracy` on `valid` of each baseline fitted on `train`."""
    return score_baselines(fit_baselines(train, seed), valid)


def fit_baselines(train: Split, seed: int) -> dict[str, Predict]:
    """Fit the baselines on a question answering split; `informed` is included if the pages have words."""
    blind = {"majority": _majority(train), "question_only": _question_only(train, seed)}
    has_words = (
        train.documents is not None and (pc.max(pc.list_value_length(train.documents["words"])).as_py() or 0) > 0
    )
    return blind | ({"informed": informed(train)} if has_words else {})


def score_baselines(baselines: Mapping[str, Predict], split: Split, group: str = "") -> dict[str, Scores]:
    """Return mean `anls` and `accuracy` of each baseline on a split, and accuracy by value of the column `group`."""
    answers = split.examples["answers"].to_pylist()
    scores: dict[str, Scores] = {}
    for name, predict in baselines.items():
        guesses = predict(split)
        correct = [normalize_answer(g) in map(normalize_answer, a) for g, a in zip(guesses, answers, strict=True)]
        scores[name] = {
            "anls": float(np.mean([anls(g, a) for g, a in zip(guesses, answers, strict=True)])),
            "accuracy": float(np.mean(correct)),
        }
        if group:
            scores[name][f"accuracy by {group}"] = _mean_by(split.examples[group].to_pylist(), correct)
    return scores


def _mean_by(values: Sequence[str], correct: Sequence[bool]) -> dict[str, float]:
    groups: dict[str, list[bool]] = {}
    for value, is_correct in zip(values, correct, strict=True):
        groups.setdefault(value, []).append(is_correct)
    return {value: float(np.mean(groups[value])) for value in sorted(groups)}


def _first_answers(split: Split) -> list[str]:
    return [answers[0] for answers in split.examples["answers"].to_pylist()]


def _most_frequent(items: Counter[str], count: int) -> list[str]:
    return sorted(items, key=lambda item: (-items[item], item))[:count]


def _majority(train: Split) -> Predict:
    by_field: dict[str, Counter[str]] = {}
    answers = _first_answers(train)
    for field, answer in zip(train.examples["field"].to_pylist(), answers, strict=True):
        by_field.setdefault(field, Counter())[answer] += 1
    best = {field: _most_frequent(counts, 1)[0] for field, counts in by_field.items()}
    overall = _most_frequent(Counter(answers), 1)[0]
    return lambda split: [best.get(field, overall) for field in split.examples["field"].to_pylist()]


def _terms(question: str) -> list[str]:
    words = re.findall(r"\w+", question.lower())
    return [*words, *(f"{a} {b}" for a, b in pairwise(words))]


def _question_only(train: Split, seed: int) -> Predict:
    """Fit a multinomial logistic regression on bags of words and word pairs by SGD."""
    import torch  # imported here: subprocesses that only draw pages do not need it

    questions = train.examples["question"].to_pylist()
    terms = Counter(term for question in questions for term in set(_terms(question)))
    vocabulary = {term: i for i, term in enumerate(_most_frequent(terms, MAX_FEATURES))}
    answers = _first_answers(train)
    classes = _most_frequent(Counter(answers), MAX_CLASSES)
    class_of = {answer: i for i, answer in enumerate(classes)}
    rows = [i for i, answer in enumerate(answers) if answer in class_of]
    bags = torch.from_numpy(_bags([questions[i] for i in rows], vocabulary))
    labels = torch.tensor([class_of[answers[i]] for i in rows])

    table = torch.zeros(len(vocabulary) + 2, len(classes), requires_grad=True)  # terms, then the bias, then padding

    def logits(batch: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.embedding_bag(batch, table, mode="sum", padding_idx=len(vocabulary) + 1)

    random = rng(seed, "question only")
    for step in range(STEPS):
        batch = torch.from_numpy(random.integers(len(rows), size=BATCH_SIZE))
        loss = torch.nn.functional.cross_entropy(logits(bags[batch]), labels[batch])
        (gradient,) = torch.autograd.grad(loss, table)
        with torch.no_grad():  # plain SGD: importing torch.optim takes longer than the whole fit
            table -= LEARNING_RATE * (1 - step / STEPS) * gradient

    def predict(split: Split) -> list[str]:
        with torch.no_grad():
            best = logits(torch.from_numpy(_bags(split.examples["question"].to_pylist(), vocabulary))).argmax(1)
        return [classes[i] for i in best.tolist()]

    return predict


def _bags(questions: Sequence[str], vocabulary: dict[str, int]) -> np.ndarray:
    """Return rows of term indices, int64 [N, longest]: known terms, the bias, then padding."""
    bias, padding = len(vocabulary), len(vocabulary) + 1
    bags = [[*(vocabulary[t] for t in _terms(q) if t in vocabulary), bias] for q in questions]
    filled = np.full((len(bags), max(map(len, bags), default=1)), padding, np.int64)
    for row, bag in zip(filled, bags, strict=True):
        row[: len(bag)] = bag
    return filled
