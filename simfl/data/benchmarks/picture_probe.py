"""Simple classifiers on pictures, as baselines: gradient histograms and mean colours, with ridge regression."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image

from simfl.data.base import Split
from simfl.seeds import rng

CELLS, BINS, RIDGE = 4, 8, 10.0
MAX_QUESTIONS, KERNEL_RIDGE = 3000, 0.3  # training questions of the kernel probe


def features(images: Sequence[bytes]) -> np.ndarray:
    """Return, for each of 4 x 4 cells, a histogram of 8 gradient directions and the mean colour; float64 [N, 177]."""
    return np.stack([_features(image) for image in images])


def _features(image: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(image)) as opened:
        pixels = np.asarray(opened.convert("RGB"), np.float32) / 255
    down, right = np.gradient(pixels.mean(-1))
    strength = np.hypot(down, right)
    direction = ((np.arctan2(down, right) / np.pi % 1) * BINS).astype(int) % BINS
    side = len(pixels)
    cell = np.arange(side) * CELLS // side
    cells = cell[:, None] * CELLS + cell
    edges = np.bincount((cells * BINS + direction).ravel(), strength.ravel(), CELLS * CELLS * BINS)
    edges = edges / (np.linalg.norm(edges) + 1e-6)
    counts = np.bincount(cells.ravel(), minlength=CELLS * CELLS)
    means = [np.bincount(cells.ravel(), pixels[..., k].ravel(), CELLS * CELLS) / counts for k in range(3)]
    return np.concatenate([4 * edges, *means, [1.0]])


def linear_scores(train: pa.Table, test: pa.Table, num_classes: int) -> dict[str, Any]:
    """Return test accuracies of a linear ridge classifier.

    `accuracy` is that of a classifier fitted on all of `train`. `trained on` gives, for each training domain, the
    accuracy on each test domain of a classifier fitted on that domain alone.
    """
    known, queries = features(train["image"].to_pylist()), features(test["image"].to_pylist())
    train_domain, test_domain = np.array(train["domain"].to_pylist()), np.array(test["domain"].to_pylist())
    labels, truth = train["label"].to_numpy(), test["label"].to_numpy()

    def hits(rows: np.ndarray) -> np.ndarray:
        x, y = known[rows], np.eye(num_classes)[labels[rows]]
        weights = np.linalg.solve(x.T @ x + RIDGE * np.eye(x.shape[1]), x.T @ y)
        return np.asarray((queries @ weights).argmax(1) == truth)

    by_domain = {str(name): hits(train_domain == name) for name in sorted(set(train_domain))}
    domains = sorted(set(test_domain))
    return {
        "accuracy": float(hits(np.ones(len(train_domain), bool)).mean()),
        "trained on": {
            name: {str(d): float(hit[test_domain == d].mean()) for d in domains} for name, hit in by_domain.items()
        },
    }


def majority_accuracy(train: pa.Table, test: pa.Table) -> float:
    """Return the test accuracy of always answering with the most frequent class of `train`."""
    return float(np.mean(test["label"].to_numpy() == np.bincount(train["label"].to_numpy()).argmax()))


class KernelProbe:
    """Kernel ridge classifier of questions about pictures, fitted on at most 3,000 training questions.

    The kernel is the product of two similarities: of questions by their common words, of pictures by their features.
    """

    def __init__(self, train: Split, num_classes: int, seed: int) -> None:
        rows = np.sort(rng("scene_vqa", seed, "informed").permutation(len(train))[:MAX_QUESTIONS])
        self.terms: dict[str, int] = {}
        for text in train.examples["question"].to_pylist():
            for word in _words(text):
                self.terms.setdefault(word, len(self.terms))
        pictures = _picture_features(train)
        self.mean, self.spread = pictures.mean(0), pictures.std(0) + 1e-3
        self.known = self._encode(train, rows, pictures)
        targets = np.eye(num_classes, dtype=np.float32)[train.examples["label"].to_numpy()[rows]]
        kernel = self._kernel(self.known, self.known) + KERNEL_RIDGE * np.eye(len(rows), dtype=np.float32)
        self.weights = np.linalg.solve(kernel, targets)

    def accuracy(self, split: Split) -> float:
        """Return the share of a split's questions that are answered correctly."""
        queries = self._encode(split, np.arange(len(split)), _picture_features(split))
        guess = (self._kernel(queries, self.known) @ self.weights).argmax(1)
        return float(np.mean(guess == split.examples["label"].to_numpy()))

    def _encode(self, split: Split, rows: np.ndarray, pictures: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return normalized bags of words [n, terms] and picture features [n, features] of these examples."""
        bags = np.zeros((len(rows), len(self.terms)), np.float32)
        texts = split.examples["question"].to_pylist()
        for i, row in enumerate(rows.tolist()):
            for word in _words(texts[row]):
                if word in self.terms:
                    bags[i, self.terms[word]] = 1
        bags /= np.linalg.norm(bags, axis=1, keepdims=True) + 1e-6
        scaled = ((pictures - self.mean) / self.spread / pictures.shape[1] ** 0.5).astype(np.float32)
        return bags, scaled[split.examples["document"].to_numpy()[rows]]

    def _kernel(self, one: tuple[np.ndarray, np.ndarray], other: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        question_similarity = (one[0] @ other[0].T) ** 4
        distance = (one[1] ** 2).sum(1)[:, None] + (other[1] ** 2).sum(1) - 2 * one[1] @ other[1].T
        return np.asarray(question_similarity * (0.2 + np.exp(-distance)))


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def _picture_features(split: Split) -> np.ndarray:
    assert split.documents is not None
    return features(split.documents["image"].to_pylist())
