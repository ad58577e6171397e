"""AQUA: questions on paintings of SemArt, some of which need knowledge from outside the picture.

Garcia et al. 2020 (A dataset and baselines for visual question answering on art).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from simfl.constraints import Whole
from simfl.data.base import Data, Dataset
from simfl.data.io import records
from simfl.data.io.gather import Gather, Missing, Pictures, finish, kept
from simfl.data.readers import vqa
from simfl.errors import DataError

EDITION = 1
NAMES = {"train": "train", "valid": "val", "test": "test"}


@dataclass(frozen=True)
class Aqua(Data):
    """Questions on paintings (AQUA on SemArt); the kind of a question is `visual` or `knowledge`."""

    path: str  # a folder with train.json, val.json, test.json and the pictures; ~ and $VARIABLES are followed
    knowledge: bool = True  # false: leave out questions that need knowledge from outside the picture
    image_size: Whole = 224  # pictures are stored in colour, squeezed to this many pixels square; 0: paths only
    missing: Missing = "refuse"  # drop: leave out questions on pictures that are not there

    QUESTIONS: ClassVar[dict[str, int]] = {"train": 69812, "valid": 5124, "test": 4912}

    def load(self, cache: Path) -> Dataset:
        root = records.folder(self.path)
        files = {split: records.need(root, f"{name}.json") for split, name in NAMES.items()}
        return kept(cache, "aqua", EDITION, self, files.values(), lambda: self._build(root, files))

    def _build(self, root: Path, files: dict[str, Path]) -> Dataset:
        pictures = Pictures(self.image_size, self.missing)
        gathered = {split: Gather(pictures, more=[vqa.COUNTS]) for split in files}
        for split, path in files.items():
            for row, (where, record) in enumerate(records.json_list(path)):
                self._ask(gathered[split], root, f"{split}-{row}", where, record)
        return finish("aqua", gathered, {"licence": "the authors': research use"})

    def _ask(self, gather: Gather, root: Path, id: str, where: str, record: records.Record) -> None:
        needed = record.get("need_external_knowledge", False)
        if not isinstance(needed, bool):
            raise DataError(f"{where}: need_external_knowledge is {needed!r}, true or false is needed")
        if needed and not self.knowledge:
            gather.dropped["needs knowledge"] += 1
            return
        name, question = records.text(where, record, "image"), records.text(where, record, "question")
        page = gather.page(where, name, vqa.picture(root, name, "images", "Images", "SemArt/Images", "."))
        answers, counts = vqa.tally(where, [record.get("answer")], "answer")
        gather.ask(id, page, question, answers, "knowledge" if needed else "visual", counts=counts)
