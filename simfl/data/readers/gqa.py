"""GQA: questions made from scene graphs; with Places365 probabilities, pictures have scenes and scenes are clients.

Hudson and Manning 2019 (GQA). Scenes as in Zhu et al. 2024 (federated VQA, FedP3): the most probable Places365 category
of a picture, if it is more probable than 0.6, belongs to one of six scenes by a map that the user gives.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import pyarrow as pa

from simfl.constraints import Fraction, Whole
from simfl.data.base import Data, Dataset, Published
from simfl.data.io import places, records
from simfl.data.io.gather import Gather, Missing, Pictures, finish, kept
from simfl.data.io.places import Scenes
from simfl.data.readers import vqa
from simfl.errors import ConfigError
from simfl.seeds import rng

EDITION = 1
NAMES = {"train": "train", "valid": "val", "test": "testdev"}
MORE = (*(vqa.COUNTS,), ("semantic", pa.string()), ("detailed", pa.string()), ("scene", pa.string()))


@dataclass(frozen=True)
class Gqa(Data):
    """Questions made from scene graphs (GQA), with the scenes of pictures where Places365 probabilities are given."""

    path: str  # a folder with the question files (or questions/) and images/; ~ and $VARIABLES are followed
    questions: Literal["balanced", "all"] = "balanced"  # which of the two question sets; all: training ones in shards
    scenes: str | None = None  # a CSV with columns image, category, probability; without it pictures have no scene
    scene_map: str | None = None  # a JSON of the scene of each category
    confidence: Fraction = 0.6  # pictures whose best category is not more probable are left out
    unseen: tuple[str, ...] = ()  # scenes that nobody trains on; their validation and test questions are `unseen`
    yes_no: Fraction = 1.0  # share of the questions answered by yes or no that is kept, drawn by their ids
    image_size: Whole = 224  # pictures are stored in colour, squeezed to this many pixels square; 0: paths only
    missing: Missing = "refuse"  # drop: leave out questions on pictures that are not there

    QUESTIONS: ClassVar[dict[str, int]] = {"train": 943000, "valid": 132062, "test": 12578}  # balanced
    FEDP3: ClassVar[dict[str, tuple[int, int]]] = {  # training and test questions of paper 003's scenes
        "Commercial": (19573, 6473),
        "Educational": (13472, 4225),
        "Transport": (12384, 4160),
        "Natural": (14820, 4512),
        "Sports": (14784, 5120),
        "Home": (14498, 4353),
    }

    def load(self, cache: Path) -> Dataset:
        if (self.scenes is None) != (self.scene_map is None):
            raise ConfigError("data.scenes, data.scene_map: give both or none")
        if self.unseen and self.scenes is None:
            raise ConfigError("data.unseen: has no effect without data.scenes")
        root = records.folder(self.path)
        files = {split: _files(root, f"{name}_{self.questions}_questions") for split, name in NAMES.items()}
        if not files["train"]:
            records.need(root, f"{NAMES['train']}_{self.questions}_questions.json")
        told = [records.file(given) for given in (self.scenes, self.scene_map) if given is not None]
        sources = [*told, *(path for paths in files.values() for path in paths)]
        return kept(cache, "gqa", EDITION, self, sources, lambda: self._build(root, files, told))

    def published(self) -> Published | None:
        """The scenes are FedP3's; without scenes, the balanced questions."""
        if self.scenes is None:
            return Published(self.QUESTIONS["train"]) if self.questions == "balanced" else None
        counts = {scene: count for scene, (count, _) in self.FEDP3.items() if scene not in self.unseen}
        return Published(sum(counts.values()), by={"scene": counts})

    def _build(self, root: Path, files: dict[str, list[Path]], told: list[Path]) -> Dataset:
        scenes = places.read(told[0], told[1], self.confidence) if told else None
        pictures = Pictures(self.image_size, self.missing)
        names = [*(split for split, paths in files.items() if paths), *(["unseen"] if self.unseen else [])]
        gathered = {split: Gather(pictures, more=MORE) for split in names}
        for split, paths in files.items():
            for path in paths:
                for where, id, record in _questions(path):
                    self._ask(gathered, root, split, where, id, record, scenes)
        return finish("gqa", gathered, {"licence": "CC BY 4.0; pictures of Visual Genome"})

    def _ask(
        self, gathered: dict[str, Gather], root: Path, split: str, where: str, id: str, record: records.Record,
        scenes: Scenes | None,
    ) -> None:  # fmt: skip
        image = records.name(where, record, "imageId")  # some begin with n, and the picture's file does too
        answer = record.get("answer")
        scene = scenes.scene.get(image) if scenes else ""
        reason = scenes.why_not(image) if scenes and scene is None else ""
        if not reason and answer in ("yes", "no") and rng("gqa", "yes or no", id).random() >= self.yes_no:
            reason = "yes or no, thinned out"
        if not reason and scene in self.unseen and split == "train":
            reason = "unseen scene"
        if reason:
            gathered[split].dropped[reason] += 1
            return
        gather = gathered["unseen" if scene in self.unseen else split]
        page = gather.page(where, image, root / "images" / f"{image}.jpg")
        answers, counts = vqa.tally(where, None if answer is None else [answer], "answer")
        types = records.mapping(where, record.get("types") or {}, "types")
        kinds = {name: str(types.get(name) or "") for name in ("structural", "semantic", "detailed")}
        question = records.text(where, record, "question")
        gather.ask(id, page, question, answers, kinds.pop("structural"), counts=counts, scene=scene, **kinds)


def _files(root: Path, name: str) -> list[Path]:
    """The file of this name, or the shards in the folder of this name by their numbers."""
    found = records.found(root, f"{name}.json", f"questions/{name}.json", name, f"questions/{name}")
    if found is None or found.is_file():
        return [found] if found else []
    shards = {path: path.stem.removeprefix(f"{name}_") for path in found.glob(f"{name}_*.json")}
    return sorted((p for p, number in shards.items() if number.isdigit()), key=lambda p: int(shards[p]))


def _questions(path: Path) -> Iterator[tuple[str, str, dict[str, object]]]:
    """File and question, its id and its record."""
    for id, record in records.mapping(str(path), records.json_file(path)).items():
        where = f"{path} question {id}"
        yield where, id, records.mapping(where, record)
