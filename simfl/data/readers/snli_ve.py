"""SNLI-VE: does a photograph entail a sentence, contradict it, or neither?

Xie et al. 2019 (Visual entailment: a novel task for fine-grained image understanding). JSON lines on Flickr30K.
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
NAMES = {"train": "train", "valid": "dev", "test": "test"}
LABELS = {"entailment": 0, "contradiction": 1, "neutral": 2}  # CLiMB's order
ID = ("Flickr30K_ID", "Flickr30kID", "Flikr30kID", "Flickr30k_ID")  # the spelling varies


@dataclass(frozen=True)
class SnliVe(Data):
    """Sentences that a photograph entails, contradicts or leaves open."""

    path: str  # a folder with snli_ve_{train,dev,test}.jsonl and the photographs; ~ and $VARIABLES are followed
    image_size: Whole = 224  # pictures are stored in colour, squeezed to this many pixels square; 0: paths only
    missing: Missing = "refuse"  # drop: leave out sentences on pictures that are not there

    QUESTIONS: ClassVar[dict[str, int]] = {"train": 529527, "valid": 17858, "test": 17901}

    def load(self, cache: Path) -> Dataset:
        root = records.folder(self.path)
        files = {
            split: records.need(root, f"snli_ve_{n}.jsonl", f"data/snli_ve_{n}.jsonl") for split, n in NAMES.items()
        }
        return kept(cache, "snli_ve", EDITION, self, files.values(), lambda: self._build(root, files))

    def _build(self, root: Path, files: dict[str, Path]) -> Dataset:
        pictures = Pictures(self.image_size, self.missing)
        gathered = {split: Gather(pictures, more=[("label", pa.int32())]) for split in files}
        for split, path in files.items():
            for where, record in records.json_lines(path):
                self._ask(gathered[split], root, where, record)
        card = {"licence": "SNLI CC BY-SA 4.0; photographs of Flickr30K: research use", "num_classes": len(LABELS)}
        return finish("snli_ve", gathered, card)

    def _ask(self, gather: Gather, root: Path, where: str, record: records.Record) -> None:
        if record.get("gold_label") == "-":  # the annotators did not agree
            gather.dropped["no gold label"] += 1
            return
        label = records.one_of(where, record, "gold_label", LABELS)
        image = records.name(where, record, *ID).removesuffix(".jpg")
        names = dict.fromkeys([f"{image}.jpg", f"{int(image)}.jpg" if image.isdigit() else f"{image}.jpg"])
        folders = ("images", "flickr30k_images", "flickr30k-images", ".")
        places = [vqa.picture(root, name, *folders) for name in names]
        page = gather.page(where, image, next((path for path in places if path.is_file()), places[0]))
        sentence, id = records.text(where, record, "sentence2"), records.name(where, record, "pairID")
        gather.ask(id, page, sentence, [record["gold_label"]], label=label)
