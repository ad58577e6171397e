"""VCR: questions on film stills with four answers to choose from, and four reasons for the right one.

Zellers et al. 2019 (From recognition to cognition: visual commonsense reasoning). In its texts a list of numbers stands
for objects of the picture. As in CLiMB (Srinivasan et al. 2022) persons get names that fit anyone, other objects are
called `the gray CLASS`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa

from simfl.constraints import Whole
from simfl.data.base import Data, Dataset
from simfl.data.io import records
from simfl.data.io.gather import Gather, Missing, Pictures, finish, kept
from simfl.data.io.records import Record
from simfl.data.readers import vqa
from simfl.errors import DataError

EDITION = 1
NAMES = {"train": "train", "valid": "val", "test": "test"}
PERSONS = (
    *("Casey", "Riley", "Jessie", "Jackie", "Avery", "Jaime", "Peyton"),
    *("Kerry", "Jody", "Kendall", "Skyler", "Frankie", "Pat", "Quinn"),
)
MORE = (("choices", pa.list_(pa.string())), ("label", pa.int32()))


@dataclass(frozen=True)
class Vcr(Data):
    """Film stills with four answers, or four reasons, to choose from; pages have the objects for words, with boxes."""

    path: str  # a folder with {train,val,test}.jsonl and vcr1images/ or drawn_images/; ~ and $VARIABLES are followed
    task: Literal["qa", "qar"] = "qa"  # choose the answer, or the reason when the right answer is known
    drawn: bool = False  # true: pictures on which the objects' boxes were drawn before, as CLiMB has them
    image_size: Whole = 224  # pictures are stored in colour, squeezed to this many pixels square; 0: paths only
    missing: Missing = "refuse"  # drop: leave out questions on pictures that are not there

    QUESTIONS: ClassVar[dict[str, int]] = {"train": 212923, "valid": 26534, "test": 25263}

    def load(self, cache: Path) -> Dataset:
        root = records.folder(self.path)
        files = {split: path for split, name in NAMES.items() if (path := records.found(root, f"{name}.jsonl"))}
        records.need(root, "train.jsonl")
        return kept(cache, "vcr", EDITION, self, files.values(), lambda: self._build(root, files))

    def _build(self, root: Path, files: dict[str, Path]) -> Dataset:
        gathered = {}
        for split, path in files.items():
            gathered[split] = Gather(Pictures(self.image_size, self.missing), split != "test", MORE)
            for where, record in records.json_lines(path):
                self._ask(gathered[split], root, NAMES[split], where, record)
        return finish("vcr", gathered, {"licence": "the authors': research use", "num_classes": 4, "task": self.task})

    def _ask(self, gather: Gather, root: Path, part: str, where: str, record: Record) -> None:
        id, objects = records.name(where, record, "annot_id"), records.texts(where, record, "objects")
        answers, reasons = (self._choices(where, record, field, objects) for field in ("answer", "rationale"))
        right, why = (_label(where, record, f"{field}_label") for field in ("answer", "rationale"))
        question = sentence(f"{where}: question", record.get("question"), objects)
        if self.task == "qar" and right is None:
            gather.dropped["answer withheld"] += 1
            return
        if self.task == "qar" and right is not None:
            question, answers, right = f"{question} {answers[right]}", reasons, why
        page = self._page(gather, root, part, where, record, objects)
        told = [] if right is None else [answers[right]]
        gather.ask(f"{id}-{self.task}", page, question, told, self.task, choices=answers, label=right)

    def _choices(self, where: str, record: Record, kind: str, objects: list[str]) -> list[str]:
        given = record.get(f"{kind}_choices")
        if not isinstance(given, list) or len(given) != 4:
            raise DataError(f"{where}: {kind}_choices are not four")
        return [sentence(f"{where}: {kind}_choices {i}", tokens, objects) for i, tokens in enumerate(given)]

    def _page(
        self, gather: Gather, root: Path, part: str, where: str, record: Record, objects: list[str]
    ) -> int | None:
        if self.drawn:
            name = f"{records.name(where, record, 'annot_id')}.jpg"
            return gather.page(where, name, root / "drawn_images" / "bbox" / part / self.task / name)
        name = records.text(where, record, "img_fn")
        if (known := gather.known(name)) is not None:
            return known
        path = vqa.picture(root, name, "vcr1images", "images", ".")
        meta = path.parent / Path(records.text(where, record, "metadata_fn")).name
        if not path.is_file() and self.missing == "drop":
            return gather.page(where, name, path)
        return gather.page(where, name, path, objects, _boxes(meta, len(objects)))


def sentence(where: str, tokens: Any, objects: list[str]) -> str:
    """The words of a text with names for the objects that it points to."""
    if not isinstance(tokens, list):
        raise DataError(f"{where} is {type(tokens).__name__}, a list of words and object numbers is needed")
    words = []
    for token in tokens:
        numbers = token if isinstance(token, list) else []
        if not isinstance(token, str | list) or not all(isinstance(n, int) and 0 <= n < len(objects) for n in numbers):
            raise DataError(f"{where} points to {token!r}, the picture has {len(objects)} objects")
        words.append(token if isinstance(token, str) else " and ".join(_called(n, objects) for n in numbers))
    return " ".join(words)


def _called(number: int, objects: list[str]) -> str:
    if objects[number] != "person":
        return f"the gray {objects[number]}"
    return PERSONS[objects[:number].count("person") % len(PERSONS)]


def _label(where: str, record: Record, field: str) -> int | None:
    """Which of the four is right; None where it is withheld."""
    if record.get(field) is None:
        return None
    label = records.whole(where, record, field)
    if not 0 <= label < 4:
        raise DataError(f"{where}: {field} is {label}, allowed: 0 to 3")
    return label


def _boxes(path: Path, count: int) -> np.ndarray:
    """Boxes of the objects as shares of the picture, float32 flat."""
    meta = records.mapping(str(path), records.json_file(path))
    sides = [records.whole(str(path), meta, side) for side in ("width", "height")]
    try:
        boxes = np.asarray(meta.get("boxes"), np.float64)[:, :4].reshape(count, 4)
    except (ValueError, TypeError, IndexError):
        raise DataError(f"{path}: boxes are not four numbers and a score for each of {count} objects") from None
    return np.clip(boxes / [*sides, *sides], 0.0, 1.0).astype(np.float32).reshape(-1)
