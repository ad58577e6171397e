"""COCO-QA: questions generated from captions of MS COCO, each with a one-word answer.

Ren et al. 2015 (Exploring models and data for image question answering). Line i of questions.txt, answers.txt,
img_ids.txt and types.txt belongs to question i.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from simfl.constraints import Fraction, NonNegativeInt
from simfl.data.base import Data, Dataset, Published
from simfl.data.io import records
from simfl.data.io.arrow_store import load_or_build
from simfl.data.io.images import MissingImages
from simfl.data.io.questions import ANSWER_COUNTS, ImageStorage, QuestionSplitBuilder, build_question_dataset
from simfl.errors import DataError
from simfl.seeds import rng

VERSION = 1
FILES = ("questions.txt", "answers.txt", "img_ids.txt", "types.txt")
TYPES = {"0": "object", "1": "number", "2": "colour", "3": "location"}


@dataclass(frozen=True)
class CocoQa(Data):
    """Questions on photographs generated from captions, each with a one-word answer."""

    path: str  # folder with train/ and test/ of four text files each, and the images; ~ and $VARIABLES are expanded
    valid: Fraction = 0.1  # share of the training images used for validation, drawn by their numbers
    image_size: NonNegativeInt = 224  # images are stored in colour, resized to this many pixels square; 0: paths only
    missing: MissingImages = "refuse"  # drop: leave out questions on missing images

    QUESTIONS: ClassVar[dict[str, int]] = {"train": 78736, "test": 38948}  # training questions include `valid`

    def published(self) -> Published:
        """Return the published size without the validation share."""
        return Published(round(self.QUESTIONS["train"] * (1 - self.valid)))

    def load(self, cache: Path) -> Dataset:
        """Read the data set from the cache or its files."""
        root = records.resolve_folder(self.path)
        files = {part: [records.require(root / part, name) for name in FILES] for part in ("train", "test")}
        sources = [path for paths in files.values() for path in paths]
        return load_or_build(cache, "coco_qa", VERSION, self, sources, lambda: self._build(root, files))

    def _build(self, root: Path, files: dict[str, list[Path]]) -> Dataset:
        images = ImageStorage(self.image_size, self.missing)
        splits = ("train", "valid", "test")
        builders = {split: QuestionSplitBuilder(images, example_columns=[ANSWER_COUNTS]) for split in splits}
        for part, paths in files.items():
            for row, (where, question, answer, image, kind) in enumerate(_read(paths)):
                if kind not in TYPES:
                    raise DataError(f"{where}: the type is {kind!r}, allowed: {', '.join(TYPES)}")
                builder = builders[self._split(part, image)]
                page = builder.add_page(where, image, _image_path(root, part, where, image))
                builder.add_question(f"{part}-{row}", page, question, [answer], TYPES[kind], counts=[1])
        return build_question_dataset("coco_qa", builders, {"licence": "photographs of MS COCO under Flickr's terms"})

    def _split(self, part: str, image: str) -> str:
        is_valid = part == "train" and rng("coco_qa", "valid", image).random() < self.valid
        return "valid" if is_valid else part


def _read(paths: list[Path]) -> Iterator[tuple[str, str, str, str, str]]:
    """Yield file and row, question, answer, image number and type of each question."""
    files = [list(records.read_lines(path)) for path in paths]
    if len({len(lines) for lines in files}) > 1:
        sizes = ", ".join(f"{path.name} {len(lines)}" for path, lines in zip(paths, files, strict=True))
        raise DataError(f"{paths[0].parent}: the files have different numbers of lines: {sizes}")
    for question, answer, image, kind in zip(*files, strict=True):
        yield question[0], question[1].strip(), answer[1].strip(), image[1].strip(), kind[1].strip()


def _image_path(root: Path, part: str, where: str, image: str) -> Path:
    if not image.isdigit():
        raise DataError(f"{where}: the image is {image!r}, expected a number")
    subsets = ("train2014", "val2014") if part == "train" else ("val2014", "train2014")
    names = [f"COCO_{subset}_{int(image):012d}.jpg" for subset in subsets]
    paths = [f"{folder}/{name}" for name in names for folder in ("images", name.split("_")[1], ".")]
    return records.find(root, *paths) or root / paths[0]
