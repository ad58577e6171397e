"""How well words are guessed without reading: the most frequent word of a client, and the most similar picture's."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Sequence

import numpy as np
from PIL import Image

from simfl.data.base import Split
from simfl.metrics import anls

SMALL = (32, 8)  # pixels, width and height, at which pictures are compared
BLOCK = 512  # pictures compared at once


def score(train: Split, split: Split) -> dict[str, dict[str, float]]:
    """`accuracy` and `similarity` (1 - edits / length, 0 below a half) of both on a split.

    `nearest` gives the text of the training picture with the highest correlation of grey levels, or of its negative.
    """
    texts, told = split.examples["text"].to_pylist(), train.examples["text"].to_pylist()
    return {"majority": _score(_majority(train, split), texts), "nearest": _score(_nearest(train, split, told), texts)}


def _score(guesses: Sequence[str], texts: Sequence[str]) -> dict[str, float]:
    pairs = list(zip(guesses, texts, strict=True))
    return {
        "accuracy": float(np.mean([guess == text for guess, text in pairs])),
        "similarity": float(np.mean([anls(guess, [text]) for guess, text in pairs])),
    }


def _majority(train: Split, split: Split) -> list[str]:
    counts: dict[str, Counter[str]] = {}
    for row in train.examples.select(["source", "text"]).to_pylist():
        counts.setdefault(row["source"], Counter())[row["text"]] += 1
    best = {name: min(held, key=lambda text: (-held[text], text)) for name, held in counts.items()}
    return [best[source] for source in split.examples["source"].to_pylist()]


def _nearest(train: Split, split: Split, told: Sequence[str]) -> list[str]:
    known, asked = _pixels(train), _pixels(split)
    best = [np.abs(asked[i : i + BLOCK] @ known.T).argmax(1) for i in range(0, len(asked), BLOCK)]
    return [told[row] for row in np.concatenate(best)]


def _pixels(split: Split) -> np.ndarray:
    """Each picture small and grey, with mean 0 and length 1, float32 [N, 256]."""
    rows = [
        np.asarray(Image.open(io.BytesIO(image)).convert("L").resize(SMALL, Image.Resampling.BOX), np.float32).ravel()
        for image in split.examples["image"].to_pylist()
    ]
    pixels = np.stack(rows)
    pixels -= pixels.mean(1, keepdims=True)
    return np.asarray(pixels / np.maximum(np.linalg.norm(pixels, axis=1, keepdims=True), 1e-6))
