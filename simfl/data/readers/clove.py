"""CLOVE: questions in stages, by scene or by function, made for learning one after the other.

Lei et al. 2023 (Symbolic replay: scene graph as prompt for continual learning on VQA task). FedDAT (Chen et al. 2024)
takes the stages as clients and leaves out scenetext. Files are fcl_mmf_STAGE_{train,val}.npy, object arrays.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from simfl.constraints import Whole
from simfl.data.base import Data, Dataset
from simfl.data.io import records
from simfl.data.io.gather import Gather, Missing, Pictures, finish, kept
from simfl.data.io.plain_pickle import load_records
from simfl.data.io.records import Record
from simfl.data.readers import vqa
from simfl.errors import ConfigError, DataError, nearest

EDITION = 1
FILE = re.compile(r"fcl_mmf_(\w+)_(train|val)\.npy")
SCENES = {
    "a": "ShopAndDining",
    "b": "Workplace",
    "c": "HomeOrHotel",
    "d": "Transportation",
    "e": "SportAndLeisure",
    "f": "Outdoors",
}
MORE = (vqa.COUNTS, ("stage", pa.string()), ("fact", pa.string()))


@dataclass(frozen=True)
class Clove(Data):
    """Questions in stages by scene or by function (CLOVE); each stage may be a client."""

    path: str  # a folder with fcl_mmf_*.npy (folders within it included) and images/; ~ and $VARIABLES are followed
    stages: tuple[
        str, ...
    ] = ()  # attribute, knowledge, … or ShopAndDining, …, as files name them; none: all that are there
    image_size: Whole = 224  # pictures are stored in colour, squeezed to this many pixels square; 0: paths only
    missing: Missing = "refuse"  # drop: leave out questions on pictures that are not there

    FUNCTIONS: ClassVar[dict[str, tuple[int, int]]] = {  # training and validation questions
        **dict.fromkeys(("object", "relation", "logical", "knowledge"), (20000, 3000)),
        "attribute": (18673, 3000),
        "scenetext": (16868, 2422),
    }
    FEDDAT: ClassVar[tuple[str, ...]] = ("attribute", "knowledge", "logical", "object", "relation")

    def load(self, cache: Path) -> Dataset:
        root = records.folder(self.path)
        files = self._files(root)
        sources = [path for paths in files.values() for path in paths.values()]
        return kept(cache, "clove", EDITION, self, sources, lambda: self._build(root, files))

    def _files(self, root: Path) -> dict[str, dict[str, Path]]:
        """The files of each split by stage."""
        found: dict[str, dict[str, Path]] = {"train": {}, "valid": {}}
        for path in sorted(root.rglob("fcl_mmf_*.npy")):
            if match := FILE.fullmatch(path.name):
                found["train" if match[2] == "train" else "valid"][SCENES.get(match[1], match[1])] = path
        if not found["train"]:
            raise DataError(f"data.path: {root} has no fcl_mmf_STAGE_train.npy")
        chosen = self.stages or tuple(found["train"])
        for stage in chosen:
            if stage not in found["train"]:
                raise ConfigError(f"data.stages: there is no {stage!r}; {nearest(stage, found['train'])}")
        return {split: {s: paths[s] for s in chosen if s in paths} for split, paths in found.items()}

    def _build(self, root: Path, files: dict[str, dict[str, Path]]) -> Dataset:
        gathered = {}
        for split, paths in files.items():
            gathered[split] = Gather(Pictures(self.image_size, self.missing), more=MORE)
            for stage, path in paths.items():
                for where, record in _records(path):
                    _ask(gathered[split], root, stage, where, record)
        return finish("clove", gathered, {"licence": "the authors': research use"})


def _records(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for row, entry in enumerate(load_records(path)):
        where = f"{path} row {row}"
        record = records.mapping(where, entry)
        if row or "question" in record:  # a header may come first, as in other files of that kind
            yield where, record


def _ask(gather: Gather, root: Path, stage: str, where: str, record: Record) -> None:
    image = records.name(where, record, "image_id")
    picture = vqa.picture(root, f"{image}.jpg", "images", f"images/{record.get('image_source')}", "images/train")
    words = records.texts(where, record, "ocr_tokens") if record.get("ocr_tokens") else []
    page = gather.page(where, image, picture, words, _boxes(where, record.get("ocr_info"), len(words)))
    given = record.get("answers")
    answers, counts = vqa.tally(where, [record.get("answer")] if given is None else given)
    question, id = records.text(where, record, "question"), records.name(where, record, "question_id")
    kind = str(record.get("raw_question_type") or "")
    gather.ask(id, page, question, answers, kind, counts=counts, stage=stage, fact=_fact(record.get("supporting_fact")))


def _fact(given: Any) -> str:
    """What is known besides the picture, as words: a triplet of the knowledge stage, or a text."""
    entry = given[0] if isinstance(given, list) and given else given
    if isinstance(entry, dict):
        return " ".join(str(part) for part in entry.get("triplet") or ())
    return entry if isinstance(entry, str) else ""


def _boxes(where: str, info: Any, count: int) -> np.ndarray:
    """Boxes of the words, flat; without positions every word has the whole picture."""
    given = [entry.get("bounding_box") for entry in info or () if isinstance(entry, dict)]
    told = [box for box in given if isinstance(box, dict)]
    if len(told) != count:
        return np.tile(np.array([0, 0, 1, 1], np.float32), count)
    try:
        sides = [[float(box.get(names, 0)) for names in ("topLeftX", "topLeftY", "width", "height")] for box in told]
    except (TypeError, ValueError):
        raise DataError(f"{where}: ocr_info holds a bounding_box without numbers") from None
    boxes = np.array(sides, np.float32).reshape(-1, 4)
    boxes[:, 2:] += boxes[:, :2]
    return np.clip(boxes, 0.0, 1.0).reshape(-1)
