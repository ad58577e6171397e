"""SNLI-VE: does a photograph entail a sentence, contradict it, or neither?

Xie et al. 2019 (Visual entailment: a novel task for fine-grained image understanding). JSON lines on Flickr30K.
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

VERSION = 1
NAMES = {"train": "train", "valid": "dev", "test": "test"}
LABELS = {"entailment": 0, "contradiction": 1, "neutral": 2}  # CLiMB's order
ID_FIELDS = ("Flickr30K_ID", "Flickr30kID", "Flikr30kID", "Flickr30k_ID")  # the spelling varies
FOLDERS = ("images", "flickr30k_images", "flickr30k-images", ".")


@dataclass(frozen=True)
class SnliVe(Data):
    """Sentences that a photograph entails, contradicts or leaves undetermined."""

    path: str  # folder with snli_ve_{train,dev,test}.jsonl and the photographs; ~ and $VARIABLES are expanded
    image_size: NonNegativeInt = 224  # images are stored in colour, resized to this many pixels square; 0: paths only
    missing: MissingImages = "refuse"  # drop: leave out sentences on missing images

    QUESTIONS: ClassVar[dict[str, int]] = {"train": 529527, "valid": 17858, "test": 17901}

    def load(self, cache: Path) -> Dataset:
        """Read the data set from the cache or its files."""
        root = records.resolve_folder(self.path)
        names = {split: f"snli_ve_{name}.jsonl" for split, name in NAMES.items()}
        files = {split: records.require(root, name, f"data/{name}") for split, name in names.items()}
        return load_or_build(cache, "snli_ve", VERSION, self, files.values(), lambda: self._build(root, files))

    def _build(self, root: Path, files: dict[str, Path]) -> Dataset:
        images = ImageStorage(self.image_size, self.missing)
        builders = {split: QuestionSplitBuilder(images, example_columns=[("label", pa.int32())]) for split in files}
        for split, path in files.items():
            for where, record in records.read_json_lines(path):
                _add(builders[split], root, where, record)
        card = {"licence": "SNLI CC BY-SA 4.0; photographs of Flickr30K: research use", "num_classes": len(LABELS)}
        return build_question_dataset("snli_ve", builders, card)


def _add(builder: QuestionSplitBuilder, root: Path, where: str, record: records.Record) -> None:
    if record.get("gold_label") == "-":  # the annotators disagree
        builder.dropped["no gold label"] += 1
        return
    label = records.get_label(where, record, "gold_label", LABELS)
    image = records.get_identifier(where, record, *ID_FIELDS).removesuffix(".jpg")
    names = dict.fromkeys([f"{image}.jpg", f"{int(image)}.jpg" if image.isdigit() else f"{image}.jpg"])
    paths = [find_image(root, name, *FOLDERS) for name in names]
    page = builder.add_page(where, image, next((path for path in paths if path.is_file()), paths[0]))
    sentence, id = records.get_text(where, record, "sentence2"), records.get_identifier(where, record, "pairID")
    builder.add_question(id, page, sentence, [str(record["gold_label"])], label=label)
