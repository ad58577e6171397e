"""NLVR2: is a sentence true of two photographs?

Suhr et al. 2019 (A corpus for reasoning about natural language grounded in photographs). JSON lines; pictures are
SPLIT-SET-PAIR-img0.png and img1.png, flat as CLiMB and FedDAT keep them or in numbered folders as downloaded.
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
from simfl.errors import DataError

EDITION = 1
NAMES = {"train": "train", "valid": "dev", "test": "test1"}
LABELS = {"False": 0, "True": 1}
MORE = (("second", pa.int32()), ("label", pa.int32()), ("synset", pa.string()))


@dataclass(frozen=True)
class Nlvr2(Data):
    """Sentences that are true or false of two photographs; `document` is the left one's row, `second` the right's."""

    path: str  # a folder with {train,dev,test1}.json (or data/) and images/; ~ and $VARIABLES are followed
    image_size: Whole = 224  # pictures are stored in colour, squeezed to this many pixels square; 0: paths only
    missing: Missing = "refuse"  # drop: leave out sentences on pictures that are not there

    QUESTIONS: ClassVar[dict[str, int]] = {"train": 86373, "valid": 6982, "test": 6967}

    def load(self, cache: Path) -> Dataset:
        root = records.folder(self.path)
        files = {split: records.need(root, f"{name}.json", f"data/{name}.json") for split, name in NAMES.items()}
        return kept(cache, "nlvr2", EDITION, self, files.values(), lambda: self._build(root, files))

    def _build(self, root: Path, files: dict[str, Path]) -> Dataset:
        gathered = {split: Gather(Pictures(self.image_size, self.missing), more=MORE) for split in files}
        for split, path in files.items():
            for where, record in records.json_lines(path):
                self._ask(gathered[split], root, NAMES[split], where, record)
        card = {"licence": "annotations CC BY 4.0; photographs their owners'", "num_classes": 2}
        return finish("nlvr2", gathered, card)

    def _ask(self, gather: Gather, root: Path, part: str, where: str, record: records.Record) -> None:
        id = records.text(where, record, "identifier")
        pair, divider, _ = id.rpartition("-")
        if not divider:
            raise DataError(f"{where}: identifier is {id!r}, SPLIT-SET-PAIR-SENTENCE is needed")
        folders = ["images", f"images/{part}", f"images/{part}/{record.get('directory')}", part]
        names = [f"{pair}-img{side}.png" for side in (0, 1)]
        left, right = (gather.page(where, name, vqa.picture(root, name, *folders)) for name in names)
        label = records.one_of(where, record, "label", LABELS)
        page = left if right is not None else None
        sentence, synset = records.text(where, record, "sentence"), str(record.get("synset") or "")
        gather.ask(id, page, sentence, [record["label"]], second=right, label=label, synset=synset)
