"""VQA v2 (photographs) and Abstract Scenes: questions with the answers of ten annotators.

Goyal et al. 2017 (Making the V in VQA matter); Antol et al. 2015 (VQA).
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import pyarrow as pa

from simfl.constraints import NonNegativeInt
from simfl.data.base import Data, Dataset, Published
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


@dataclass(frozen=True)
class VqaRelease:
    """File names of a release; `{}` is the subset, such as train2014."""

    questions: str
    annotations: str
    image: str
    subsets: dict[str, str]  # split -> subset


@dataclass(frozen=True)
class VqaFiles:
    """Files of one subset."""

    subset: str
    questions: Path
    annotations: Path | None  # None: the answers are withheld


@dataclass(frozen=True)
class VqaAnnotation:
    """Answers of the annotators to one question."""

    texts: list[str]  # most frequent first
    counts: list[int]
    kind: str  # yes/no, number or other
    question_type: str


WITHHELD = VqaAnnotation([], [], "", "")
RELEASES = {
    "real": VqaRelease(
        "v2_OpenEnded_mscoco_{}_questions.json",
        "v2_mscoco_{}_annotations.json",
        "COCO_{}_{:012d}.jpg",
        {"train": "train2014", "valid": "val2014", "test": "test2015"},
    ),
    "abstract": VqaRelease(
        "OpenEnded_abstract_v002_{}_questions.json",
        "abstract_v002_{}_annotations.json",
        "abstract_v002_{}_{:012d}.png",
        {"train": "train2015", "valid": "val2015", "test": "test2015"},
    ),
}


@dataclass(frozen=True)
class VqaV2(Data):
    """Questions on photographs (VQA v2) or on abstract scenes, with the answers of ten annotators."""

    path: str  # folder with the question and annotation files and the images; ~ and $VARIABLES are expanded
    scenes: Literal["real", "abstract"] = "real"  # which of the two releases
    image_size: NonNegativeInt = 224  # images are stored in colour, resized to this many pixels square; 0: paths only
    missing: MissingImages = "refuse"  # drop: leave out questions on missing images

    QUESTIONS: ClassVar[dict[str, dict[str, int]]] = {
        "real": {"train": 443757, "valid": 214354, "test": 447793},
        "abstract": {"train": 60000, "valid": 30000, "test": 60000},
    }

    def load(self, cache: Path) -> Dataset:
        """Read the data set from the cache or its files."""
        root = records.resolve_folder(self.path)
        release = RELEASES[self.scenes]
        found = {split: _find_files(root, release, subset) for split, subset in release.subsets.items()}
        files = {split: paths for split, paths in found.items() if paths}
        if "train" not in files:
            raise DataError(f"data.path: {root} has no {release.questions.format(release.subsets['train'])}")
        sources = [path for paths in files.values() for path in (paths.questions, paths.annotations) if path]
        return load_or_build(cache, "vqa_v2", VERSION, self, sources, lambda: self._build(root, release, files))

    def published(self) -> Published:
        """Return the published size of the release."""
        return Published(self.QUESTIONS[self.scenes]["train"])

    def _build(self, root: Path, release: VqaRelease, files: dict[str, VqaFiles]) -> Dataset:
        images = ImageStorage(self.image_size, self.missing)
        columns = [ANSWER_COUNTS, ("question_type", pa.string())]
        builders = {}
        for split, paths in files.items():
            builders[split] = QuestionSplitBuilder(images, paths.annotations is not None, columns)
            _add_subset(builders[split], root, release, paths)
        card = {"licence": "CC BY 4.0; photographs of MS COCO under Flickr's terms", "scenes": self.scenes}
        return build_question_dataset("vqa_v2", builders, card)


def _add_subset(builder: QuestionSplitBuilder, root: Path, release: VqaRelease, files: VqaFiles) -> None:
    annotations = {} if files.annotations is None else _read_annotations(files.annotations)
    for where, record in records.read_json_list(files.questions, "questions"):
        id = records.get_identifier(where, record, "question_id")
        if files.annotations is not None and id not in annotations:
            raise DataError(f"{where}: question_id {id} has no annotation in {files.annotations.name}")
        answer = annotations.get(id, WITHHELD)
        name = release.image.format(files.subset, records.get_int(where, record, "image_id"))
        path = find_image(root, name, "images", files.subset, f"images/{files.subset}", ".")
        page = builder.add_page(where, name, path)
        question = records.get_text(where, record, "question")
        columns = {"counts": answer.counts, "question_type": answer.question_type}
        builder.add_question(id, page, question, answer.texts, answer.kind, **columns)


def _find_files(root: Path, release: VqaRelease, subset: str) -> VqaFiles | None:
    """Return the files of a subset, None if it is absent; only a test subset may lack annotations."""
    questions, annotations = release.questions.format(subset), release.annotations.format(subset)
    found = records.find(root, questions, f"questions/{questions}", f"annotations/{questions}")
    if found is None:
        return None
    answers = records.find(root, annotations, f"annotations/{annotations}")
    if answers is None and not subset.startswith("test"):
        raise DataError(f"data.path: {root} has {questions} without {annotations}")
    return VqaFiles(subset, found, answers)


def _read_annotations(path: Path) -> dict[str, VqaAnnotation]:
    """Return the annotation of each question by its id."""
    found = {}
    for where, record in records.read_json_list(path, "annotations"):
        texts, counts = count_answers(where, record.get("answers"))
        kind, form = (sys.intern(str(record.get(field) or "")) for field in ("answer_type", "question_type"))
        found[records.get_identifier(where, record, "question_id")] = VqaAnnotation(texts, counts, kind, form)
    return found
