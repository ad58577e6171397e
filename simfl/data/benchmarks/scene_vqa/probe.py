"""A simple look: what near questions about near pictures were answered, by ridge regression with a kernel.

Questions are near by the words they share, pictures by their edges and colours in 16 cells; a pair is near if both are.
"""

from __future__ import annotations

import re

import numpy as np

from simfl.data.base import Split
from simfl.data.benchmarks.domains.probe import features
from simfl.seeds import rng

MOST, RIDGE = 3000, 0.3  # training questions


class Informed:
    """The classifier, fitted on at most 3,000 questions of a training split."""

    def __init__(self, train: Split, classes: int, seed: int) -> None:
        rows = np.sort(rng("scene_vqa", seed, "informed").permutation(len(train))[:MOST])
        self.terms: dict[str, int] = {}
        for text in train.examples["question"].to_pylist():
            for word in _words(text):
                self.terms.setdefault(word, len(self.terms))
        pictures = _pictures(train)
        self.middle, self.spread = pictures.mean(0), pictures.std(0) + 1e-3
        self.seen = self._encode(train, rows, pictures)
        right = np.eye(classes, dtype=np.float32)[train.examples["label"].to_numpy()[rows]]
        kernel = self._kernel(self.seen, self.seen) + RIDGE * np.eye(len(rows), dtype=np.float32)
        self.weights = np.linalg.solve(kernel, right)

    def accuracy(self, split: Split) -> float:
        """The share of a split's questions that it answers."""
        asked = self._encode(split, np.arange(len(split)), _pictures(split))
        guess = (self._kernel(asked, self.seen) @ self.weights).argmax(1)
        return float(np.mean(guess == split.examples["label"].to_numpy()))

    def _encode(self, split: Split, rows: np.ndarray, pictures: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Normed bags of words [n, terms] and pictures [n, features] of these examples."""
        bags = np.zeros((len(rows), len(self.terms)), np.float32)
        texts = split.examples["question"].to_pylist()
        for place, row in enumerate(rows.tolist()):
            for word in _words(texts[row]):
                if word in self.terms:
                    bags[place, self.terms[word]] = 1
        bags /= np.linalg.norm(bags, axis=1, keepdims=True) + 1e-6
        looks = ((pictures - self.middle) / self.spread / pictures.shape[1] ** 0.5).astype(np.float32)
        return bags, looks[split.examples["document"].to_numpy()[rows]]

    def _kernel(self, one: tuple[np.ndarray, np.ndarray], other: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        near = (one[0] @ other[0].T) ** 4
        apart = (one[1] ** 2).sum(1)[:, None] + (other[1] ** 2).sum(1) - 2 * one[1] @ other[1].T
        return np.asarray(near * (0.2 + np.exp(-apart)))


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def _pictures(split: Split) -> np.ndarray:
    assert split.documents is not None
    return features(split.documents["image"].to_pylist())
