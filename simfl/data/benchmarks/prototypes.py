"""A synthetic classification data set of any size and shape: class prototypes plus Gaussian noise.

It serves benchmarks and tests of the simulator, which need data that can be learnt, whatever its content.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa

from simfl.constraints import PositiveFloat, PositiveInt
from simfl.data.base import Data, Dataset, Split
from simfl.data.io.arrow_store import content_sha256, load_or_build
from simfl.data.io.classification import feature_split
from simfl.errors import ConfigError
from simfl.seeds import rng

VERSION = 1
BLOCK = 4096  # examples drawn from one random stream; bounds memory and makes examples independent of the size


@dataclass(frozen=True)
class Prototypes(Data):
    """Random pictures for benchmarks: a fixed prototype for each class plus Gaussian noise."""

    examples: PositiveInt = (
        10_000  # number of training examples; a tenth each in valid and test, at least one per class
    )
    classes: PositiveInt = 10  # number of classes
    shape: tuple[int, ...] = (3, 32, 32)  # shape of one example
    groups: PositiveInt = 100  # number of values of the column `group`: consecutive parts of equal size
    margin: PositiveFloat = 4.0  # norm of a prototype; the noise has standard deviation 1 in every entry
    seed: int = 0  # of prototypes, labels and noise
    example: ClassVar[Mapping[str, object]] = {"examples": 40, "classes": 4, "shape": [4], "groups": 4}

    def load(self, cache: Path) -> Dataset:
        """Load the data set from the cache, or build and store it."""
        for name in ("examples", "classes", "groups", "margin"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"data.{name}: {getattr(self, name)} given, it must be above 0")
        if not self.shape or min(self.shape) < 1:
            raise ConfigError(f"data.shape: {list(self.shape)} given, sizes must be above 0")
        return load_or_build(cache, "prototypes", VERSION, self, (), self._build)

    def _build(self) -> Dataset:
        few = max(self.classes, self.examples // 10)
        splits = {name: self._split(name, n) for name, n in (("train", self.examples), ("valid", few), ("test", few))}
        card = {
            "licence": "made by simfl, no rights reserved",
            "shape": list(self.shape),
            "num_classes": self.classes,
            "examples": {name: len(split) for name, split in splits.items()},
        }
        return Dataset("prototypes", splits, content_sha256(splits), card)

    def _split(self, name: str, count: int) -> Split:
        size = math.prod(self.shape)
        prototypes = rng("prototypes", self.seed).standard_normal((self.classes, size), np.float32)
        prototypes *= self.margin / np.linalg.norm(prototypes, axis=1, keepdims=True)
        labels = rng("prototypes", self.seed, name, "labels").permutation(np.arange(count) % self.classes)
        features = prototypes[labels]
        for block in range(0, count, BLOCK):
            part = features[block : block + BLOCK]
            part += rng("prototypes", self.seed, name, block).standard_normal(part.shape, np.float32)
        group = np.arange(count) * self.groups // count
        digits = len(str(self.groups - 1))
        names = pa.array([f"g{g:0{digits}}" for g in range(self.groups)])
        return feature_split(features, labels, group=names.take(pa.array(group)))
