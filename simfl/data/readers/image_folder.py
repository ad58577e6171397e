"""Pictures in folders named by what they are: split, domain, class."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from simfl.constraints import Count, Fraction
from simfl.data.base import Data, Dataset
from simfl.data.io import records
from simfl.data.io.gather import kept
from simfl.data.readers.labelled_images import Labelled, dataset
from simfl.errors import ConfigError, DataError
from simfl.seeds import rng

EDITION = 1
SPLITS = {"train": "train", "val": "valid", "valid": "valid", "validation": "valid", "test": "test", "unseen": "unseen"}
PICTURES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".gif", ".ppm")


@dataclass(frozen=True)
class ImageFolder(Data):
    """Pictures in folders that tell their class, and their split and domain if they have one."""

    path: str  # the uppermost folder; ~ and $VARIABLES are followed
    layout: Literal["class", "domain/class", "split/class", "split/domain/class"] = (
        "class"  # what the folders are, from above
    )
    valid: Fraction = 0.1  # where folders tell no split: the share of each domain and class
    test: Fraction = 0.2  # likewise
    image_size: Count = 64  # pictures are stored in colour, squeezed to this many pixels square

    def load(self, cache: Path) -> Dataset:
        if self.valid + self.test >= 1:
            raise ConfigError(f"data.valid, data.test: {self.valid}, {self.test} given, below 1 together")
        root = records.folder(self.path)
        found = list(self._pictures(root))
        if not found:
            raise DataError(f"data.path: {root} has no pictures in folders {self.layout}")
        return kept(cache, "image_folder", EDITION, self, [one.path for _, one in found], lambda: self._build(found))

    def _pictures(self, root: Path) -> Iterator[tuple[str, Labelled]]:
        """Every picture with its split, empty where folders tell none, in the order of the names."""
        levels = self.layout.split("/")
        names = sorted(p.relative_to(root).as_posix() for p in root.glob("*/" * len(levels) + "*"))
        pictures = [name for name in names if Path(name).suffix.lower() in PICTURES]
        kinds = sorted({Path(name).parts[len(levels) - 1] for name in pictures})
        number = {kind: label for label, kind in enumerate(kinds)}
        for name in pictures:
            told = dict(zip(levels, Path(name).parts, strict=False))
            split = told.get("split")
            if split is not None and split not in SPLITS:
                raise DataError(f"data.path: {root / split} is no split, allowed: {', '.join(SPLITS)}")
            kind = told["class"]
            one = Labelled(name, name, root / name, number[kind], kind, told.get("domain", ""))
            yield SPLITS[split] if split else "", one

    def _build(self, found: list[tuple[str, Labelled]]) -> Dataset:
        told: dict[str, list[Labelled]] = {"train": []}
        groups: dict[tuple[str, str], list[Labelled]] = {}
        for split, one in found:
            if split:
                told.setdefault(split, []).append(one)
            else:
                groups.setdefault((one.domain, one.kind), []).append(one)
        for (domain, kind), pictures in groups.items():
            ranks = rng("image_folder", "split", domain, kind).permutation(len(pictures)).tolist()
            test, valid = (round(share * len(pictures)) for share in (self.test, self.valid))
            for rank, one in zip(ranks, pictures, strict=True):
                part = "test" if rank < test else "valid" if rank < test + valid else "train"
                told.setdefault(part, []).append(one)
        return dataset("image_folder", told, self.image_size, "refuse", "the pictures' own")
