"""VQA v2 (photographs) and Abstract Scenes: questions with ten annotators' answers.

Goyal et al. 2017 (Making the V in VQA matter); Antol et al. 2015 (VQA).
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple

import pyarrow as pa

from simfl.constraints import Whole
from simfl.data.base import Data, Dataset, Published
from simfl.data.io import records
from simfl.data.io.gather import Gather, Missing, Pictures, finish, kept
from simfl.data.readers import vqa
from simfl.errors import DataError

EDITION = 1


class Names(NamedTuple):
    """How the files of a release are called; `{}` is the subset, such as train2014."""

    questions: str
    annotations: str
    picture: str
    subsets: dict[str, str]


class Answer(NamedTuple):
    """What the annotators said to a question."""

    texts: list[str]  # most frequent first
    counts: list[int]
    kind: str  # yes/no, number or other
    question_type: str


WITHHELD = Answer([], [], "", "")
RELEASES = {
    "real": Names(
        "v2_OpenEnded_mscoco_{}_questions.json",
        "v2_mscoco_{}_annotations.json",
        "COCO_{}_{:012d}.jpg",
        {"train": "train2014", "valid": "val2014", "test": "test2015"},
    ),
    "abstract": Names(
        "OpenEnded_abstract_v002_{}_questions.json",
        "abstract_v002_{}_annotations.json",
        "abstract_v002_{}_{:012d}.png",
        {"train": "train2015", "valid": "val2015", "test": "test2015"},
    ),
}


@dataclass(frozen=True)
class VqaV2(Data):
    """Questions on photographs (VQA v2) or on abstract scenes, with ten annotators' answers."""

    path: str  # a folder with the question and annotation files and the pictures; ~ and $VARIABLES are followed
    scenes: Literal["real", "abstract"] = "real"  # which of the two releases
    image_size: Whole = 224  # pictures are stored in colour, squeezed to this many pixels square; 0: paths only
    missing: Missing = "refuse"  # drop: leave out questions on pictures that are not there

    QUESTIONS: ClassVar[dict[str, dict[str, int]]] = {
        "real": {"train": 443757, "valid": 214354, "test": 447793},
        "abstract": {"train": 60000, "valid": 30000, "test": 60000},
    }

    def load(self, cache: Path) -> Dataset:
        root = records.folder(self.path)
        names = RELEASES[self.scenes]
        files = {split: _pair(root, names, subset) for split, subset in names.subsets.items()}
        there = {split: pair for split, pair in files.items() if pair}
        if "train" not in there:
            raise DataError(f"data.path: {root} has no {names.questions.format(names.subsets['train'])}")
        sources = [path for pair in there.values() for path in pair if path]
        return kept(cache, "vqa_v2", EDITION, self, sources, lambda: self._build(root, names, there))

    def published(self) -> Published:
        return Published(self.QUESTIONS[self.scenes]["train"])

    def _build(self, root: Path, names: Names, files: dict[str, tuple[Path, Path | None]]) -> Dataset:
        gathered = {}
        for split, pair in files.items():
            more = [vqa.COUNTS, ("question_type", pa.string())]
            gathered[split] = Gather(Pictures(self.image_size, self.missing), pair[1] is not None, more)
            self._read(gathered[split], root, names, names.subsets[split], *pair)
        card = {"licence": "CC BY 4.0; photographs of MS COCO under Flickr's terms", "scenes": self.scenes}
        return finish("vqa_v2", gathered, card)

    def _read(
        self, gather: Gather, root: Path, names: Names, subset: str, questions: Path, answered: Path | None
    ) -> None:
        told = {} if answered is None else _annotations(answered)
        for where, record in records.json_list(questions, "questions"):
            id = records.name(where, record, "question_id")
            if answered is not None and id not in told:
                raise DataError(f"{where}: question_id {id} has no annotation in {answered.name}")
            answer = told.get(id, WITHHELD)
            name = names.picture.format(subset, records.whole(where, record, "image_id"))
            path = vqa.picture(root, name, "images", subset, f"images/{subset}", ".")
            page = gather.page(where, name, path)
            question = records.text(where, record, "question")
            more = {"counts": answer.counts, "question_type": answer.question_type}
            gather.ask(id, page, question, answer.texts, answer.kind, **more)


def _pair(root: Path, names: Names, subset: str) -> tuple[Path, Path | None] | None:
    """Questions and annotations of a subset; only questions where answers are withheld, None where there is nothing."""
    questions, annotations = names.questions.format(subset), names.annotations.format(subset)
    found = records.found(root, questions, f"questions/{questions}", f"annotations/{questions}")
    if found is None:
        return None
    answers = records.found(root, annotations, f"annotations/{annotations}")
    if answers is None and not subset.startswith("test"):
        raise DataError(f"data.path: {root} has {questions} without {annotations}")
    return found, answers


def _annotations(path: Path) -> dict[str, Answer]:
    """The answer to each question."""
    found = {}
    for where, record in records.json_list(path, "annotations"):
        texts, counts = vqa.tally(where, record.get("answers"))
        kind, form = (sys.intern(str(record.get(field) or "")) for field in ("answer_type", "question_type"))
        found[records.name(where, record, "question_id")] = Answer(texts, counts, kind, form)
    return found
