"""VizWiz: questions that blind people asked of their own photographs; many cannot be answered.

Gurari et al. 2018 (VizWiz grand challenge).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pyarrow as pa

from simfl.constraints import Whole
from simfl.data.base import Data, Dataset
from simfl.data.io import records
from simfl.data.io.gather import Gather, Missing, Pictures, finish, kept
from simfl.data.readers import vqa

EDITION = 1
NAMES = {"train": "train", "valid": "val", "test": "test"}


@dataclass(frozen=True)
class VizWiz(Data):
    """Questions of blind people on their photographs, ten answers each; `answerable` is 0 where there is no answer."""

    path: str  # a folder with Annotations/ and the pictures; ~ and $VARIABLES are followed
    unanswerable: bool = True  # false: leave out training and validation questions that cannot be answered
    image_size: Whole = 224  # pictures are stored in colour, squeezed to this many pixels square; 0: paths only
    missing: Missing = "refuse"  # drop: leave out questions on pictures that are not there

    QUESTIONS: ClassVar[dict[str, int]] = {"train": 20523, "valid": 4319, "test": 8000}

    def load(self, cache: Path) -> Dataset:
        root = records.folder(self.path)
        folder = records.found(root, "Annotations", "annotations") or root
        files = {split: path for split, name in NAMES.items() if (path := records.found(folder, f"{name}.json"))}
        records.need(folder, "train.json")
        return kept(cache, "vizwiz", EDITION, self, files.values(), lambda: self._build(root, files))

    def _build(self, root: Path, files: dict[str, Path]) -> Dataset:
        gathered = {}
        for split, path in files.items():
            more = [vqa.COUNTS, ("answerable", pa.int32())]
            gathered[split] = Gather(Pictures(self.image_size, self.missing), split != "test", more)
            for row, (where, record) in enumerate(records.json_list(path)):
                self._ask(gathered[split], root, split, row, where, record)
        return finish("vizwiz", gathered, {"licence": "CC BY 4.0"})

    def _ask(self, gather: Gather, root: Path, split: str, row: int, where: str, record: records.Record) -> None:
        answerable = records.whole(where, record, "answerable") if "answerable" in record else None
        if not self.unanswerable and answerable == 0:
            gather.dropped["cannot be answered"] += 1
            return
        name = records.text(where, record, "image")
        path = vqa.picture(root, name, "images", "Images", NAMES[split], f"Images/{NAMES[split]}", ".")
        answers, counts = vqa.tally(where, record.get("answers"))
        page = gather.page(where, name, path)
        question, kind = records.text(where, record, "question"), str(record.get("answer_type") or "")
        gather.ask(f"{split}-{row}", page, question, answers, kind, counts=counts, answerable=answerable)
