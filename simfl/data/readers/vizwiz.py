"""VizWiz: questions that blind people asked about their own photographs; many cannot be answered.

Gurari et al. 2018 (VizWiz grand challenge).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

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

VERSION = 1
NAMES = {"train": "train", "valid": "val", "test": "test"}


@dataclass(frozen=True)
class VizWiz(Data):
    """Questions of blind people on their photographs, ten answers each; `answerable` is 0 if there is no answer."""

    path: str  # folder with Annotations/ and the images; ~ and $VARIABLES are expanded
    unanswerable: bool = True  # false: leave out training and validation questions that cannot be answered
    image_size: NonNegativeInt = 224  # images are stored in colour, resized to this many pixels square; 0: paths only
    missing: MissingImages = "refuse"  # drop: leave out questions on missing images

    QUESTIONS: ClassVar[dict[str, int]] = {"train": 20523, "valid": 4319, "test": 8000}

    def load(self, cache: Path) -> Dataset:
        """Read the data set from the cache or its files."""
        root = records.resolve_folder(self.path)
        folder = records.find(root, "Annotations", "annotations") or root
        files = {split: path for split, name in NAMES.items() if (path := records.find(folder, f"{name}.json"))}
        records.require(folder, "train.json")
        return load_or_build(cache, "vizwiz", VERSION, self, files.values(), lambda: self._build(root, files))

    def _build(self, root: Path, files: dict[str, Path]) -> Dataset:
        images = ImageStorage(self.image_size, self.missing)
        columns = [ANSWER_COUNTS, ("answerable", pa.int32())]
        builders = {split: QuestionSplitBuilder(images, split != "test", columns) for split in files}
        for split, path in files.items():
            for row, (where, record) in enumerate(records.read_json_list(path)):
                self._add(builders[split], root, split, row, where, record)
        return build_question_dataset("vizwiz", builders, {"licence": "CC BY 4.0"})

    def _add(
        self, builder: QuestionSplitBuilder, root: Path, split: str, row: int, where: str, record: records.Record
    ) -> None:
        answerable = records.get_int(where, record, "answerable") if "answerable" in record else None
        if not self.unanswerable and answerable == 0:
            builder.dropped["cannot be answered"] += 1
            return
        name = records.get_text(where, record, "image")
        path = find_image(root, name, "images", "Images", NAMES[split], f"Images/{NAMES[split]}", ".")
        answers, counts = count_answers(where, record.get("answers"))
        page = builder.add_page(where, name, path)
        question, kind = records.get_text(where, record, "question"), str(record.get("answer_type") or "")
        columns = {"counts": counts, "answerable": answerable}
        builder.add_question(f"{split}-{row}", page, question, answers, kind, **columns)
