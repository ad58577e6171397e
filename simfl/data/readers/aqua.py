"""AQUA: questions on paintings of SemArt, some of which need external knowledge.

Garcia et al. 2020 (A dataset and baselines for visual question answering on art).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

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
from simfl.errors import DataError

VERSION = 1
NAMES = {"train": "train", "valid": "val", "test": "test"}


@dataclass(frozen=True)
class Aqua(Data):
    """Questions on paintings (AQUA on SemArt); the kind of a question is `visual` or `knowledge`."""

    path: str  # folder with train.json, val.json, test.json and the images; ~ and $VARIABLES are expanded
    knowledge: bool = True  # false: leave out questions that need external knowledge
    image_size: NonNegativeInt = 224  # images are stored in colour, resized to this many pixels square; 0: paths only
    missing: MissingImages = "refuse"  # drop: leave out questions on missing images

    QUESTIONS: ClassVar[dict[str, int]] = {"train": 69812, "valid": 5124, "test": 4912}

    def load(self, cache: Path) -> Dataset:
        """Read the data set from the cache or its files."""
        root = records.resolve_folder(self.path)
        files = {split: records.require(root, f"{name}.json") for split, name in NAMES.items()}
        return load_or_build(cache, "aqua", VERSION, self, files.values(), lambda: self._build(root, files))

    def _build(self, root: Path, files: dict[str, Path]) -> Dataset:
        images = ImageStorage(self.image_size, self.missing)
        builders = {split: QuestionSplitBuilder(images, example_columns=[ANSWER_COUNTS]) for split in files}
        for split, path in files.items():
            for row, (where, record) in enumerate(records.read_json_list(path)):
                self._add(builders[split], root, f"{split}-{row}", where, record)
        return build_question_dataset("aqua", builders, {"licence": "the authors': research use"})

    def _add(self, builder: QuestionSplitBuilder, root: Path, id: str, where: str, record: records.Record) -> None:
        needs_knowledge = record.get("need_external_knowledge", False)
        if not isinstance(needs_knowledge, bool):
            raise DataError(f"{where}: need_external_knowledge is {needs_knowledge!r}, expected true or false")
        if needs_knowledge and not self.knowledge:
            builder.dropped["needs knowledge"] += 1
            return
        name, question = records.get_text(where, record, "image"), records.get_text(where, record, "question")
        page = builder.add_page(where, name, find_image(root, name, "images", "Images", "SemArt/Images", "."))
        answers, counts = count_answers(where, [record.get("answer")], "answer")
        kind = "knowledge" if needs_knowledge else "visual"
        builder.add_question(id, page, question, answers, kind, counts=counts)
