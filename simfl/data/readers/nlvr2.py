"""NLVR2: is a sentence true of two photographs?

Suhr et al. 2019 (A corpus for reasoning about natural language grounded in photographs). JSON lines; images are
SPLIT-SET-PAIR-img0.png and img1.png, in one folder as CLiMB and FedDAT store them or in numbered folders as downloaded.
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
from simfl.data.io.questions import ImageStorage, QuestionSplitBuilder, build_question_dataset, find_image
from simfl.errors import DataError

VERSION = 1
NAMES = {"train": "train", "valid": "dev", "test": "test1"}
LABELS = {"False": 0, "True": 1}
COLUMNS = (("second", pa.int32()), ("label", pa.int32()), ("synset", pa.string()))


@dataclass(frozen=True)
class Nlvr2(Data):
    """Sentences that are true or false of two photographs; `document` is the left one's row, `second` the right's."""

    path: str  # folder with {train,dev,test1}.json (or data/) and images/; ~ and $VARIABLES are expanded
    image_size: NonNegativeInt = 224  # images are stored in colour, resized to this many pixels square; 0: paths only
    missing: MissingImages = "refuse"  # drop: leave out sentences on missing images

    QUESTIONS: ClassVar[dict[str, int]] = {"train": 86373, "valid": 6982, "test": 6967}

    def load(self, cache: Path) -> Dataset:
        """Read the data set from the cache or its files."""
        root = records.resolve_folder(self.path)
        files = {split: records.require(root, f"{name}.json", f"data/{name}.json") for split, name in NAMES.items()}
        return load_or_build(cache, "nlvr2", VERSION, self, files.values(), lambda: self._build(root, files))

    def _build(self, root: Path, files: dict[str, Path]) -> Dataset:
        images = ImageStorage(self.image_size, self.missing)
        builders = {split: QuestionSplitBuilder(images, example_columns=COLUMNS) for split in files}
        for split, path in files.items():
            for where, record in records.read_json_lines(path):
                _add(builders[split], root, NAMES[split], where, record)
        card = {"licence": "annotations CC BY 4.0; photographs their owners'", "num_classes": 2}
        return build_question_dataset("nlvr2", builders, card)


def _add(builder: QuestionSplitBuilder, root: Path, part: str, where: str, record: records.Record) -> None:
    id = records.get_text(where, record, "identifier")
    pair, dash, _ = id.rpartition("-")
    if not dash:
        raise DataError(f"{where}: identifier is {id!r}, expected SPLIT-SET-PAIR-SENTENCE")
    folders = ["images", f"images/{part}", f"images/{part}/{record.get('directory')}", part]
    names = [f"{pair}-img{side}.png" for side in (0, 1)]
    left, right = (builder.add_page(where, name, find_image(root, name, *folders)) for name in names)
    label = records.get_label(where, record, "label", LABELS)
    page = left if right is not None else None
    sentence, synset = records.get_text(where, record, "sentence"), str(record.get("synset") or "")
    builder.add_question(id, page, sentence, [str(record["label"])], second=right, label=label, synset=synset)
