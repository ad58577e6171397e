"""The handwritten digits of scikit-learn: 1,797 real images that need no download.

Alpaydin and Kaynak 1998 (UCI, optical recognition of handwritten digits; scikit-learn ships its test part).
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from simfl.constraints import Fraction
from simfl.data.base import Data, Dataset
from simfl.data.io.arrow_store import content_sha256
from simfl.data.io.classification import feature_split
from simfl.errors import ConfigError, DataError
from simfl.seeds import rng

SHAPE = (1, 8, 8)


@dataclass(frozen=True)
class Digits(Data):
    """Handwritten digits, 8x8 grey in [0, 1], ten classes; needs scikit-learn."""

    valid: Fraction = 0.1  # share of the 1,797 images for validation
    test: Fraction = 0.2  # share of the images for testing

    def load(self, cache: Path) -> Dataset:
        """Read the data set from scikit-learn's files; nothing is cached."""
        if not (self.valid > 0 and self.test > 0 and self.valid + self.test < 1):
            given = f"{self.valid}, {self.test} given"
            raise ConfigError(f"data.valid, data.test: {given}, each must be above 0 and their sum below 1")
        features, labels = _read()
        order = rng("digits", "split").permutation(len(labels))
        ends = np.round(np.cumsum([self.test, self.valid]) * len(labels)).astype(int)
        rows = dict(zip(("test", "valid", "train"), map(np.sort, np.split(order, ends)), strict=True))
        splits = {name: feature_split(features[rows[name]], labels[rows[name]]) for name in ("train", "valid", "test")}
        card = {
            "licence": "CC BY 4.0 (UCI)",
            "shape": list(SHAPE),
            "num_classes": 10,
            "examples": {name: len(split) for name, split in splits.items()},
        }
        digest = content_sha256(splits)
        return Dataset("digits", {name: s.with_sha256(digest) for name, s in splits.items()}, digest, card)


def _read() -> tuple[np.ndarray, np.ndarray]:
    try:
        datasets = importlib.import_module("sklearn.datasets")
    except ImportError as error:
        raise DataError("data: digits needs scikit-learn; pip install scikit-learn") from error
    bunch = datasets.load_digits()
    return bunch.data.reshape(-1, *SHAPE) / 16.0, bunch.target
