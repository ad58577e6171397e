"""CLOVE: questions in stages, by scene or by function, for continual learning.

Lei et al. 2023 (Symbolic replay: scene graph as prompt for continual learning on VQA task). FedDAT (Chen et al. 2024)
uses the stages as clients and leaves out scenetext. Files are fcl_mmf_STAGE_{train,val}.npy, object arrays.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa

from simfl.constraints import NonNegativeInt
from simfl.data.base import Data, Dataset
from simfl.data.io import records
from simfl.data.io.arrow_store import load_or_build
from simfl.data.io.images import MissingImages
from simfl.data.io.questions import (
    ANSWER_COUNTS,
    ImageStorage,
    QuestionSplitBuilder,
    build_question_dataset,
    count_answers,
    find_image,
)
from simfl.data.io.records import Record
from simfl.data.io.restricted_pickle import load_object_array
from simfl.errors import ConfigError, DataError, nearest

VERSION = 1
FILE = re.compile(r"fcl_mmf_(\w+)_(train|val)\.npy")
SCENES = {
    "a": "ShopAndDining",
    "b": "Workplace",
    "c": "HomeOrHotel",
    "d": "Transportation",
    "e": "SportAndLeisure",
    "f": "Outdoors",
}
COLUMNS = (ANSWER_COUNTS, ("stage", pa.string()), ("fact", pa.string()))
StageFiles = dict[str, dict[str, Path]]  # split -> stage -> file


@dataclass(frozen=True)
class Clove(Data):
    """Questions in stages by scene or by function (CLOVE); each stage may be a client."""

    path: str  # folder with fcl_mmf_*.npy (in subfolders too) and images/; ~ and $VARIABLES are expanded
    stages: tuple[str, ...] = ()  # attribute, knowledge, … or ShopAndDining, …, as in the file names; empty: all
    image_size: NonNegativeInt = 224  # images are stored in colour, resized to this many pixels square; 0: paths only
    missing: MissingImages = "refuse"  # drop: leave out questions on missing images

    FUNCTIONS: ClassVar[dict[str, tuple[int, int]]] = {  # training and validation questions
        **dict.fromkeys(("object", "relation", "logical", "knowledge"), (20000, 3000)),
        "attribute": (18673, 3000),
        "scenetext": (16868, 2422),
    }
    FEDDAT: ClassVar[tuple[str, ...]] = ("attribute", "knowledge", "logical", "object", "relation")

    def load(self, cache: Path) -> Dataset:
        """Read the data set from the cache or its files."""
        root = records.resolve_folder(self.path)
        files = self._find_files(root)
        sources = [path for paths in files.values() for path in paths.values()]
        return load_or_build(cache, "clove", VERSION, self, sources, lambda: self._build(root, files))

    def _find_files(self, root: Path) -> StageFiles:
        found: StageFiles = {"train": {}, "valid": {}}
        for path in sorted(root.rglob("fcl_mmf_*.npy")):
            if match := FILE.fullmatch(path.name):
                found["train" if match[2] == "train" else "valid"][SCENES.get(match[1], match[1])] = path
        if not found["train"]:
            raise DataError(f"data.path: {root} has no fcl_mmf_STAGE_train.npy")
        stages = self.stages or tuple(found["train"])
        for stage in stages:
            if stage not in found["train"]:
                raise ConfigError(f"data.stages: no stage {stage!r}; {nearest(stage, found['train'])}")
        return {split: {s: paths[s] for s in stages if s in paths} for split, paths in found.items()}

    def _build(self, root: Path, files: StageFiles) -> Dataset:
        images = ImageStorage(self.image_size, self.missing)
        builders = {}
        for split, paths in files.items():
            builders[split] = QuestionSplitBuilder(images, example_columns=COLUMNS)
            for stage, path in paths.items():
                for where, record in _read(path):
                    _add(builders[split], root, stage, where, record)
        return build_question_dataset("clove", builders, {"licence": "the authors': research use"})


def _read(path: Path) -> Iterator[tuple[str, Record]]:
    for row, entry in enumerate(load_object_array(path)):
        where = f"{path} row {row}"
        record = records.as_mapping(where, entry)
        if row or "question" in record:  # a header may come first, as in other files of this format
            yield where, record


def _add(builder: QuestionSplitBuilder, root: Path, stage: str, where: str, record: Record) -> None:
    image = records.get_identifier(where, record, "image_id")
    path = find_image(root, f"{image}.jpg", "images", f"images/{record.get('image_source')}", "images/train")
    words = records.get_texts(where, record, "ocr_tokens") if record.get("ocr_tokens") else []
    page = builder.add_page(where, image, path, words, _boxes(where, record.get("ocr_info"), len(words)))
    given = record.get("answers")
    answers, counts = count_answers(where, [record.get("answer")] if given is None else given)
    question, id = records.get_text(where, record, "question"), records.get_identifier(where, record, "question_id")
    kind = str(record.get("raw_question_type") or "")
    columns = {"counts": counts, "stage": stage, "fact": _fact(record.get("supporting_fact"))}
    builder.add_question(id, page, question, answers, kind, **columns)


def _fact(value: object) -> str:
    """Return the supporting fact as words: a triplet of the knowledge stage, or a text."""
    entry = value[0] if isinstance(value, list) and value else value
    if isinstance(entry, dict):
        return " ".join(str(part) for part in entry.get("triplet") or ())
    return entry if isinstance(entry, str) else ""


def _boxes(where: str, info: object, num_words: int) -> np.ndarray:
    """Return the boxes of the words, flat; without positions every word gets the whole image."""
    entries = [entry.get("bounding_box") for entry in info if isinstance(entry, dict)] if isinstance(info, list) else []
    found = [box for box in entries if isinstance(box, dict)]
    if len(found) != num_words:
        return np.tile(np.array([0, 0, 1, 1], np.float32), num_words)
    try:
        sides = [[float(box.get(name, 0)) for name in ("topLeftX", "topLeftY", "width", "height")] for box in found]
    except (TypeError, ValueError):
        raise DataError(f"{where}: a bounding_box of ocr_info is not numeric") from None
    boxes = np.array(sides, np.float32).reshape(-1, 4)
    boxes[:, 2:] += boxes[:, :2]
    return records.ordered_corners(np.clip(boxes, 0.0, 1.0)).reshape(-1)
