"""VCR: questions on film stills with four candidate answers, and four candidate reasons for the correct one.

Zellers et al. 2019 (From recognition to cognition: visual commonsense reasoning). In its texts a list of numbers refers
to objects of the image. As in CLiMB (Srinivasan et al. 2022), persons get gender-neutral names, and other objects are
called `the gray CLASS`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import pyarrow as pa

from simfl.constraints import NonNegativeInt
from simfl.data.base import Data, Dataset
from simfl.data.io import records
from simfl.data.io.arrow_store import load_or_build
from simfl.data.io.images import MissingImages
from simfl.data.io.questions import ImageStorage, QuestionSplitBuilder, build_question_dataset, find_image
from simfl.data.io.records import Record
from simfl.errors import DataError

VERSION = 1
NAMES = {"train": "train", "valid": "val", "test": "test"}
PERSONS = (
    *("Casey", "Riley", "Jessie", "Jackie", "Avery", "Jaime", "Peyton"),
    *("Kerry", "Jody", "Kendall", "Skyler", "Frankie", "Pat", "Quinn"),
)
COLUMNS = (("choices", pa.list_(pa.string())), ("label", pa.int32()))


@dataclass(frozen=True)
class Vcr(Data):
    """Film stills with four candidate answers or reasons; the words of a page are its objects, with boxes."""

    path: str  # folder with {train,val,test}.jsonl and vcr1images/ or drawn_images/; ~ and $VARIABLES are expanded
    task: Literal["qa", "qar"] = "qa"  # choose the answer, or the reason given the correct answer
    drawn: bool = False  # true: use images with the objects' boxes drawn on them, as CLiMB stores them
    image_size: NonNegativeInt = 224  # images are stored in colour, resized to this many pixels square; 0: paths only
    missing: MissingImages = "refuse"  # drop: leave out questions on missing images

    QUESTIONS: ClassVar[dict[str, int]] = {"train": 212923, "valid": 26534, "test": 25263}

    def load(self, cache: Path) -> Dataset:
        """Read the data set from the cache or its files."""
        root = records.resolve_folder(self.path)
        files = {split: path for split, name in NAMES.items() if (path := records.find(root, f"{name}.jsonl"))}
        records.require(root, "train.jsonl")
        return load_or_build(cache, "vcr", VERSION, self, files.values(), lambda: self._build(root, files))

    def _build(self, root: Path, files: dict[str, Path]) -> Dataset:
        images = ImageStorage(self.image_size, self.missing)
        builders = {}
        for split, path in files.items():
            builders[split] = QuestionSplitBuilder(images, split != "test", COLUMNS)
            for where, record in records.read_json_lines(path):
                self._add(builders[split], root, NAMES[split], where, record)
        card = {"licence": "the authors': research use", "num_classes": 4, "task": self.task}
        return build_question_dataset("vcr", builders, card)

    def _add(self, builder: QuestionSplitBuilder, root: Path, part: str, where: str, record: Record) -> None:
        id, objects = records.get_identifier(where, record, "annot_id"), records.get_texts(where, record, "objects")
        answers, reasons = (_choices(where, record, field, objects) for field in ("answer", "rationale"))
        label, reason_label = (_label(where, record, f"{field}_label") for field in ("answer", "rationale"))
        question = resolve_objects(f"{where}: question", record.get("question"), objects)
        if self.task == "qar" and label is None:
            builder.dropped["answer withheld"] += 1
            return
        choices = answers
        if self.task == "qar" and label is not None:
            question, choices, label = f"{question} {answers[label]}", reasons, reason_label
        page = self._add_page(builder, root, part, where, record, objects)
        correct = [] if label is None else [choices[label]]
        builder.add_question(f"{id}-{self.task}", page, question, correct, self.task, choices=choices, label=label)

    def _add_page(
        self, builder: QuestionSplitBuilder, root: Path, part: str, where: str, record: Record, objects: list[str]
    ) -> int | None:
        if self.drawn:
            name = f"{records.get_identifier(where, record, 'annot_id')}.jpg"
            folder = root / "drawn_images" / "bbox" / part / self.task
            return builder.add_page(where, name, records.inside(folder, name, where))
        name = records.get_text(where, record, "img_fn")
        if (row := builder.page_row(name)) is not None:
            return row
        path = find_image(root, name, "vcr1images", "images", ".")
        metadata = path.parent / Path(records.get_text(where, record, "metadata_fn")).name
        if not path.is_file() and self.missing == "drop":
            return builder.add_page(where, name, path)
        return builder.add_page(where, name, path, objects, _read_boxes(metadata, len(objects)))


def _choices(where: str, record: Record, kind: str, objects: list[str]) -> list[str]:
    given = record.get(f"{kind}_choices")
    if not isinstance(given, list) or len(given) != 4:
        raise DataError(f"{where}: {kind}_choices does not have four entries")
    return [resolve_objects(f"{where}: {kind}_choices {i}", tokens, objects) for i, tokens in enumerate(given)]


def resolve_objects(where: str, tokens: object, objects: list[str]) -> str:
    """Return a text in which each reference to objects is replaced by their names."""
    if not isinstance(tokens, list):
        raise DataError(f"{where} is {type(tokens).__name__}, expected a list of words and object numbers")
    words = []
    for token in tokens:
        numbers = token if isinstance(token, list) else []
        if not isinstance(token, str | list) or not all(isinstance(n, int) and 0 <= n < len(objects) for n in numbers):
            raise DataError(f"{where} refers to {token!r}, the image has {len(objects)} objects")
        words.append(token if isinstance(token, str) else " and ".join(_object_name(n, objects) for n in numbers))
    return " ".join(words)


def _object_name(number: int, objects: list[str]) -> str:
    if objects[number] != "person":
        return f"the gray {objects[number]}"
    return PERSONS[objects[:number].count("person") % len(PERSONS)]


def _label(where: str, record: Record, field: str) -> int | None:
    """Return which of the four choices is correct; None if that is withheld."""
    if record.get(field) is None:
        return None
    label = records.get_int(where, record, field)
    if not 0 <= label < 4:
        raise DataError(f"{where}: {field} is {label}, allowed: 0 to 3")
    return label


def _read_boxes(path: Path, num_objects: int) -> np.ndarray:
    """Return the boxes of the objects as shares of the image, float32, flat."""
    metadata = records.read_json_mapping(path)
    sides = [records.get_int(str(path), metadata, side) for side in ("width", "height")]
    try:
        boxes = np.asarray(metadata.get("boxes"), np.float64)[:, :4].reshape(num_objects, 4)
    except (ValueError, TypeError, IndexError):
        raise DataError(
            f"{path}: expected four numbers and a score in boxes for each of {num_objects} objects"
        ) from None
    return np.clip(boxes / [*sides, *sides], 0.0, 1.0).astype(np.float32).reshape(-1)
