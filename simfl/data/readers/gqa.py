"""GQA: questions generated from scene graphs. With Places365 probabilities, images have scenes and scenes are clients.

Hudson and Manning 2019 (GQA). Scenes as in Zhu et al. 2024 (federated VQA, FedP3): the most probable Places365 category
(Zhou et al. 2018) of an image, if its probability exceeds 0.6, belongs to one of six scenes by a map that the user
provides.

    scenes      CSV: image,category,probability     one or several rows an image; the most probable category counts
    scene_map   JSON: {"/a/airfield": "Transport", ...}     the scene of each category that has one

If categories_places365.txt is in the folder of the map, a category that it does not list is an error.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import pyarrow as pa

from simfl.constraints import Fraction, NonNegativeInt
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
)
from simfl.errors import ConfigError, DataError, nearest
from simfl.seeds import rng

VERSION = 1
NAMES = {"train": "train", "valid": "val", "test": "testdev"}
COLUMNS = (ANSWER_COUNTS, ("semantic", pa.string()), ("detailed", pa.string()), ("scene", pa.string()))
CSV_COLUMNS = ("image", "category", "probability")
CATEGORIES = "categories_places365.txt"


@dataclass(frozen=True)
class SceneMap:
    """Scenes of images."""

    scenes: Mapping[str, str]  # image name without its suffix -> scene
    reasons: Mapping[str, str]  # image name without its suffix -> why it has no scene

    def reason(self, image: str) -> str:
        """Return why an image has no scene."""
        return self.reasons.get(image, "image without scene probabilities")


@dataclass(frozen=True)
class Gqa(Data):
    """Questions generated from scene graphs (GQA), with scenes of images if Places365 probabilities are given."""

    path: str  # folder with the question files (or questions/) and images/; ~ and $VARIABLES are expanded
    questions: Literal["balanced", "all"] = "balanced"  # which question set; training files of `all` are in shards
    scenes: str | None = None  # CSV with columns image, category, probability; null: images have no scene
    scene_map: str | None = None  # JSON with the scene of each category
    confidence: Fraction = 0.6  # images whose best category is not more probable are left out
    unseen: tuple[str, ...] = ()  # scenes without training; their validation and test questions are `unseen`
    yes_no: Fraction = 1.0  # share of the yes/no questions to keep, drawn by their ids
    image_size: NonNegativeInt = 224  # images are stored in colour, resized to this many pixels square; 0: paths only
    missing: MissingImages = "refuse"  # drop: leave out questions on missing images

    QUESTIONS: ClassVar[dict[str, int]] = {"train": 943000, "valid": 132062, "test": 12578}  # balanced
    FEDP3: ClassVar[dict[str, tuple[int, int]]] = {  # training and test questions of FedP3's scenes (paper 003)
        "Commercial": (19573, 6473),
        "Educational": (13472, 4225),
        "Transport": (12384, 4160),
        "Natural": (14820, 4512),
        "Sports": (14784, 5120),
        "Home": (14498, 4353),
    }

    def load(self, cache: Path) -> Dataset:
        """Read the data set from the cache or its files."""
        if (self.scenes is None) != (self.scene_map is None):
            raise ConfigError("data.scenes, data.scene_map: give both or neither")
        if self.unseen and self.scenes is None:
            raise ConfigError("data.unseen: has no effect without data.scenes")
        root = records.resolve_folder(self.path)
        files = {split: _question_files(root, f"{name}_{self.questions}_questions") for split, name in NAMES.items()}
        if not files["train"]:
            records.require(root, f"{NAMES['train']}_{self.questions}_questions.json")
        scene_files = [records.resolve_file(path) for path in (self.scenes, self.scene_map) if path is not None]
        sources = [*scene_files, *(path for paths in files.values() for path in paths)]
        return load_or_build(cache, "gqa", VERSION, self, sources, lambda: self._build(root, files, scene_files))

    def published(self) -> Published | None:
        """Return FedP3's sizes with scenes, those of the balanced questions without."""
        if self.scenes is None:
            return Published(self.QUESTIONS["train"]) if self.questions == "balanced" else None
        counts = {scene: count for scene, (count, _) in self.FEDP3.items() if scene not in self.unseen}
        return Published(sum(counts.values()), by={"scene": counts})

    def _build(self, root: Path, files: dict[str, list[Path]], scene_files: list[Path]) -> Dataset:
        scenes = read_scenes(scene_files[0], scene_files[1], self.confidence) if scene_files else None
        images = ImageStorage(self.image_size, self.missing)
        names = [*(split for split, paths in files.items() if paths), *(["unseen"] if self.unseen else [])]
        builders = {split: QuestionSplitBuilder(images, example_columns=COLUMNS) for split in names}
        for split, paths in files.items():
            for path in paths:
                for where, id, record in _read_questions(path):
                    image = records.get_identifier(where, record, "imageId")  # may begin with n, as the file name does
                    reason = self._reason_to_drop(split, id, image, record, scenes)
                    if reason:
                        builders[split].dropped[reason] += 1
                        continue
                    scene = scenes.scenes[image] if scenes else ""
                    builder = builders["unseen" if scene in self.unseen else split]
                    page = builder.add_page(where, image, records.inside(root / "images", f"{image}.jpg", where))
                    _add_question(builder, page, where, id, record, scene)
        return build_question_dataset("gqa", builders, {"licence": "CC BY 4.0; images of Visual Genome"})

    def _reason_to_drop(self, split: str, id: str, image: str, record: records.Record, scenes: SceneMap | None) -> str:
        if scenes and image not in scenes.scenes:
            return scenes.reason(image)
        if record.get("answer") in ("yes", "no") and rng("gqa", "yes or no", id).random() >= self.yes_no:
            return "yes/no question, subsampled"
        if scenes and scenes.scenes[image] in self.unseen and split == "train":
            return "unseen scene"
        return ""


def _add_question(
    builder: QuestionSplitBuilder, page: int | None, where: str, id: str, record: records.Record, scene: str
) -> None:
    answer = record.get("answer")
    answers, counts = count_answers(where, None if answer is None else [answer], "answer")
    types = records.as_mapping(where, record.get("types") or {}, "types")
    kinds = {name: str(types.get(name) or "") for name in ("structural", "semantic", "detailed")}
    question = records.get_text(where, record, "question")
    builder.add_question(id, page, question, answers, kinds.pop("structural"), counts=counts, scene=scene, **kinds)


def _question_files(root: Path, name: str) -> list[Path]:
    """Return the file of this name, or the shards in the folder of this name ordered by their numbers."""
    found = records.find(root, f"{name}.json", f"questions/{name}.json", name, f"questions/{name}")
    if found is None or found.is_file():
        return [found] if found else []
    shards = {path: path.stem.removeprefix(f"{name}_") for path in found.glob(f"{name}_*.json")}
    return sorted((p for p, number in shards.items() if number.isdigit()), key=lambda p: int(shards[p]))


def _read_questions(path: Path) -> Iterator[tuple[str, str, records.Record]]:
    """Yield the file and question for messages, the id and the record of each question."""
    for id, record in records.read_json_mapping(path).items():
        where = f"{path} question {id}"
        yield where, id, records.as_mapping(where, record)


def read_scenes(probabilities: Path, scene_map: Path, confidence: float) -> SceneMap:
    """Return the scene of each image whose best category has a scene and a probability above `confidence`."""
    scene_of = _read_scene_map(scene_map)
    best: dict[str, tuple[float, str]] = {}
    for where, row in _read_probabilities(probabilities):
        category, image = _bare_category(row["category"]), Path(row["image"]).stem
        try:
            probability = float(row["probability"])
        except ValueError:
            raise DataError(f"{where}: probability is {row['probability']!r}, expected a number") from None
        best[image] = max(best.get(image, (0.0, "")), (probability, category))
    scenes: dict[str, str] = {}
    reasons: dict[str, str] = {}
    for image, (probability, category) in best.items():
        if probability <= confidence:
            reasons[image] = "scene below confidence"
        elif category not in scene_of:
            reasons[image] = "category without a scene"
        else:
            scenes[image] = scene_of[category]
    return SceneMap(scenes, reasons)


def _read_probabilities(path: Path) -> list[tuple[str, dict[str, str]]]:
    reader = csv.DictReader([line for _, line in records.read_lines(path)])
    missing = [column for column in CSV_COLUMNS if column not in (reader.fieldnames or ())]
    if missing:
        raise DataError(f"{path} row 1: no column {missing[0]!r}, expected {', '.join(CSV_COLUMNS)}")
    rows = [(f"{path} row {number}", row) for number, row in enumerate(reader, start=2)]
    for where, row in rows:
        if any(row[column] is None for column in CSV_COLUMNS):
            raise DataError(f"{where}: too few columns, expected {', '.join(CSV_COLUMNS)}")
    return rows


def _read_scene_map(path: Path) -> dict[str, str]:
    known = read_categories(path.parent / CATEGORIES) if (path.parent / CATEGORIES).is_file() else None
    scene_of = {}
    for category, scene in records.read_json_mapping(path).items():
        if not isinstance(scene, str) or not scene:
            raise DataError(f"{path}: the scene of {category!r} is {scene!r}, expected text")
        bare = _bare_category(category)
        if known is not None and bare not in known:
            raise DataError(f"{path}: {category!r} is not a category of {CATEGORIES}; {nearest(bare, known)}")
        scene_of[bare] = scene
    return scene_of


def read_categories(path: Path) -> list[str]:
    """Return the categories of a file with lines such as `/a/airfield 0`, in order, without the leading letter."""
    return [_bare_category(line.split()[0]) for _, line in records.read_lines(path)]


def _bare_category(category: str) -> str:
    """Return `airport_terminal` for `/a/airport_terminal` and for `airport_terminal`."""
    category = category.strip()
    return category[3:] if len(category) > 3 and category[0] == category[2] == "/" else category.lstrip("/")
