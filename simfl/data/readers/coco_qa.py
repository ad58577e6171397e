"""COCO-QA: questions made from captions of MS COCO, each with one word for an answer.

Ren et al. 2015 (Exploring models and data for image question answering). Four files go line by line: questions.txt,
answers.txt, img_ids.txt, types.txt.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from simfl.constraints import Fraction, Whole
from simfl.data.base import Data, Dataset, Published
from simfl.data.io import records
from simfl.data.io.gather import Gather, Missing, Pictures, finish, kept
from simfl.data.readers import vqa
from simfl.errors import DataError
from simfl.seeds import rng

EDITION = 1
FILES = ("questions.txt", "answers.txt", "img_ids.txt", "types.txt")
TYPES = {"0": "object", "1": "number", "2": "colour", "3": "location"}


@dataclass(frozen=True)
class CocoQa(Data):
    """Questions on photographs made from captions, each with one word for an answer."""

    path: str  # a folder with train/ and test/ of four text files each, and the pictures; ~ and $VARIABLES are followed
    valid: Fraction = 0.1  # share of the training pictures that is kept for validation, drawn by their numbers
    image_size: Whole = 224  # pictures are stored in colour, squeezed to this many pixels square; 0: paths only
    missing: Missing = "refuse"  # drop: leave out questions on pictures that are not there

    QUESTIONS: ClassVar[dict[str, int]] = {"train": 78736, "test": 38948}  # training questions before `valid` is taken

    def published(self) -> Published:
        return Published(round(self.QUESTIONS["train"] * (1 - self.valid)))

    def load(self, cache: Path) -> Dataset:
        root = records.folder(self.path)
        files = {part: [records.need(root / part, name) for name in FILES] for part in ("train", "test")}
        sources = [path for paths in files.values() for path in paths]
        return kept(cache, "coco_qa", EDITION, self, sources, lambda: self._build(root, files))

    def _build(self, root: Path, files: dict[str, list[Path]]) -> Dataset:
        pictures = Pictures(self.image_size, self.missing)
        gathered = {split: Gather(pictures, more=[vqa.COUNTS]) for split in ("train", "valid", "test")}
        for part, paths in files.items():
            for row, (where, question, answer, image, kind) in enumerate(_lines(paths)):
                if kind not in TYPES:
                    raise DataError(f"{where}: the type is {kind!r}, allowed: {', '.join(TYPES)}")
                split = self._split(part, image)
                page = gathered[split].page(where, image, _picture(root, part, where, image))
                gathered[split].ask(f"{part}-{row}", page, question, [answer], TYPES[kind], counts=[1])
        return finish("coco_qa", gathered, {"licence": "photographs of MS COCO under Flickr's terms"})

    def _split(self, part: str, image: str) -> str:
        valid = part == "train" and rng("coco_qa", "valid", image).random() < self.valid
        return "valid" if valid else part


def _lines(paths: list[Path]) -> Iterator[tuple[str, str, str, str, str]]:
    """File and row, question, answer, picture and type of each question."""
    told = [list(records.lines(path)) for path in paths]
    if len({len(rows) for rows in told}) > 1:
        sizes = ", ".join(f"{path.name} {len(rows)}" for path, rows in zip(paths, told, strict=True))
        raise DataError(f"{paths[0].parent}: the files do not go line by line: {sizes}")
    for question, answer, image, kind in zip(*told, strict=True):
        yield question[0], question[1].strip(), answer[1].strip(), image[1].strip(), kind[1].strip()


def _picture(root: Path, part: str, where: str, image: str) -> Path:
    if not image.isdigit():
        raise DataError(f"{where}: the picture is {image!r}, a number is needed")
    subsets = ("train2014", "val2014") if part == "train" else ("val2014", "train2014")
    names = [f"COCO_{subset}_{int(image):012d}.jpg" for subset in subsets]
    places = [f"{folder}/{name}" for name in names for folder in ("images", name.split("_")[1], ".")]
    return records.found(root, *places) or root / places[0]
