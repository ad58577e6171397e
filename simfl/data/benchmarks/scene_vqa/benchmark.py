"""The bundled benchmark of questions about scenes: composed pictures and generated questions, without any download.

The protocol is CLEVR's (Johnson et al. 2017) with everyday things. Clients differ in scenes and in kinds of questions,
as in FedVQA (Zhu et al. 2024) and FedDAT (Chen et al. 2024).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import pyarrow as pa

from simfl.constraints import PositiveInt
from simfl.data.base import DOCUMENTS, QUESTIONS, Data, Dataset, Split
from simfl.data.baselines import fit_baselines, score_baselines
from simfl.data.benchmarks.picture_probe import KernelProbe
from simfl.data.benchmarks.random_stream import RandomStream
from simfl.data.benchmarks.report import Range, check_ranges, report
from simfl.data.benchmarks.scene_vqa import drawing
from simfl.data.benchmarks.scene_vqa.content import MAX_THINGS, Content
from simfl.data.benchmarks.scene_vqa.emoji import EMOJI
from simfl.data.benchmarks.scene_vqa.plan import PlacedThing, PlanSettings, ScenePlan, plan_picture
from simfl.data.benchmarks.scene_vqa.questions import TASKS, QuestionBalancer, SceneQuestion, balance_yes_no
from simfl.data.benchmarks.scene_vqa.stamps import STAMPS
from simfl.data.io.arrow_store import content_sha256, load_or_build
from simfl.data.io.tables import TableBuilder
from simfl.errors import ConfigError, nearest

VERSION = 1  # increased whenever the same settings give other pictures or questions
CHECKED_FROM = 200  # pictures of a scene; the ranges are not checked for smaller builds
CONTENTS: dict[str, Content] = {"emoji": EMOJI, "stamps": STAMPS}
RANGES: dict[str, Range] = {"question only": (0, 0.45), "majority": (0, 0.45), "informed beyond": (0.02, 1)}
EXAMPLES = pa.schema(
    [
        *QUESTIONS,
        ("task", pa.string()),  # kind of question
        ("scene", pa.string()),
        ("label", pa.int32()),  # index of the answer in the card's list
    ]
)
PICTURES = pa.schema(
    [
        *DOCUMENTS,
        ("scene", pa.string()),
        ("things", pa.list_(pa.string())),  # names, ordered by row
        ("places", pa.list_(pa.float32())),  # four a thing, flat: left, top, right, bottom in [0, 1]
        ("drawings", pa.list_(pa.string())),
        ("colours", pa.list_(pa.string())),  # empty for things that keep their own
    ]
)


@dataclass(frozen=True)
class SceneVqa(Data):
    """Questions about composed pictures of six scenes; needs simfl[benchmarks], or Debian's stamps."""

    content: Literal["emoji", "stamps"] = "emoji"  # stamps: photographs from Debian packages, which you install
    train: PositiveInt = 500  # number of pictures per scene
    valid: PositiveInt = 80  # number of pictures per scene
    test: PositiveInt = 120  # number of pictures per scene
    test_novel: PositiveInt = 60  # number of pictures per scene; with drawings that are not in training
    questions: PositiveInt = 4  # number of questions per picture, of different kinds
    scenes: tuple[str, ...] = tuple(EMOJI.scenes)  # scenes to use
    unseen: tuple[str, ...] = ()  # scenes that are not trained on; they are in the split `unseen` only
    tasks: tuple[str, ...] = tuple(TASKS)  # kinds of questions
    fewest: PositiveInt = 2  # minimum number of things in a picture
    most: PositiveInt = 5  # maximum number of things in a picture
    grid: Literal[2, 3] = 3  # number of rows and of columns on which things lie
    image_size: PositiveInt = 96  # pixels, square
    simple: bool = False  # true: one drawing per kind, of one size, in the centre of its cell, on white
    seed: int = 1  # of pictures and questions
    example: ClassVar[Mapping[str, object]] = {"train": 6, "valid": 2, "test": 3, "test_novel": 2, "image_size": 16}

    def load(self, cache: Path) -> Dataset:
        """Load the benchmark from the cache, or build and store it."""
        self._check()
        files = self._files()
        return load_or_build(cache, "scene_vqa", VERSION, self, files, self.build, partial(report, group="scene"))

    def build(self) -> Dataset:
        """Build the benchmark. Raise DataError if its baselines are outside their ranges."""
        splits = {name: self._split(name, count) for name, count in self._sizes().items()}
        digest = content_sha256(splits, also=f"{drawing.digest(self._files())} {self.image_size}")
        card = self._card(splits)
        if self.train >= CHECKED_FROM:
            check_ranges("scene_vqa", card["ranges"], RANGES)
        return Dataset("scene_vqa", splits, digest, card)

    def _check(self) -> None:
        for name, given, known in (
            ("scenes", self.scenes, tuple(self._content.scenes)),
            ("unseen", self.unseen, self.scenes),
            ("tasks", self.tasks, tuple(TASKS)),
        ):
            for value in given:
                if value not in known:
                    raise ConfigError(f"data.{name}: {value!r} given; {nearest(value, known)}")
        if not self.tasks or set(self.scenes) <= set(self.unseen):
            raise ConfigError("data.tasks, data.scenes: at least one task and one scene that is not unseen are needed")
        limit = min(MAX_THINGS, self.grid**2)
        if not self.fewest <= self.most <= limit:
            raise ConfigError(
                f"data.fewest, data.most: {self.fewest}, {self.most} given; with data.grid {self.grid}, "
                f"fewest <= most <= {limit} is needed"
            )

    @property
    def _content(self) -> Content:
        return CONTENTS[self.content]

    def _files(self) -> list[Path]:
        scenes = self._content.scenes
        names = {name for scene in self.scenes for thing in scenes[scene] for name in (*thing.drawings, *thing.novel)}
        return [self._content.file(name) for name in sorted(names)]

    def _sizes(self) -> dict[str, int]:
        sizes = {name: getattr(self, name) for name in ("train", "valid", "test", "test_novel")}
        return sizes | ({"unseen": self.test} if self.unseen else {})

    def _split(self, name: str, count: int) -> Split:
        scenes = self.unseen if name == "unseen" else [s for s in self.scenes if s not in self.unseen]
        pairs = list(self._plans(name, scenes, count))
        kept = iter(balance_yes_no([question for _, questions in pairs for question in questions]))
        examples, pictures = TableBuilder(EXAMPLES), TableBuilder(PICTURES)
        for picture, asked in pairs:
            questions = [question for question in asked if next(kept)]
            if not questions:
                continue
            for number, question in enumerate(questions):
                examples.add(**self._example(picture, number, question), document=len(pictures))
            pictures.add(**self._picture(picture))
        return Split(examples.table(), pictures.table())

    def _plans(self, split: str, scenes: Sequence[str], count: int) -> Iterator[tuple[ScenePlan, list[SceneQuestion]]]:
        settings = PlanSettings(self.seed, self.grid, self.fewest, self.most, self.simple)
        for scene in scenes:
            balancer = QuestionBalancer(self.grid, self.tasks)
            for number in range(count):
                picture = plan_picture(settings, split, scene, self._content.scenes[scene], number)
                random = RandomStream("scene_vqa", self.seed, "ask", picture.id)
                yield picture, balancer.ask(picture, self.questions, random)

    def _example(self, picture: ScenePlan, number: int, question: SceneQuestion) -> dict[str, object]:
        return {
            "id": f"{picture.id}-{number}",
            "question": question.text,
            "answers": [question.answer],
            "field": question.task,
            "task": question.task,
            "scene": picture.scene,
            "label": self._content.answers.index(question.answer),
        }

    def _picture(self, picture: ScenePlan) -> dict[str, object]:
        return {
            "id": picture.id,
            "provider": picture.album,
            "words": [],
            "boxes": [],
            "image": drawing.draw(picture, self._content, self.grid, self.image_size, self.simple),
            "width": self.image_size,
            "height": self.image_size,
            "scene": picture.scene,
            "things": [placed.thing.name for placed in picture.placed],
            "places": [side for placed in picture.placed for side in self._bounds(placed)],
            "drawings": [placed.drawing for placed in picture.placed],
            "colours": [placed.colour for placed in picture.placed],
        }

    def _bounds(self, placed: PlacedThing) -> tuple[float, float, float, float]:
        """Return left, top, right, bottom of the square that contains the drawing, in [0, 1]."""
        across, down = placed.column + 0.5 + placed.right, placed.row + 0.5 + placed.down
        half = placed.size / 2
        left, top, right, bottom = (v / self.grid for v in (across - half, down - half, across + half, down + half))
        return max(0.0, left), max(0.0, top), min(1.0, right), min(1.0, bottom)

    def _card(self, splits: dict[str, Split]) -> dict[str, Any]:
        baselines = self._baselines(splits)
        score = {name: found["accuracy"] for name, found in baselines["test"].items()}
        return {
            "licence": f"made by this project's code, Apache-2.0; drawings: {self._content.licence}, changed",
            "sources": list(self._content.sources),
            "num_classes": len(self._content.answers),
            "answers": list(self._content.answers),
            "pictures": {n: s.documents.num_rows for n, s in splits.items() if s.documents is not None},
            "questions": {name: len(split) for name, split in splits.items()},
            "tasks": {
                name: dict(sorted(Counter(s.examples["task"].to_pylist()).items())) for name, s in splits.items()
            },
            "image": f"colour, {self.image_size}x{self.image_size}, JPEG",
            "dropped": {},
            "baselines": baselines,
            "ranges": {
                "question only": score["question_only"],
                "majority": score["majority"],
                "informed beyond": score["informed"] - score["question_only"],
            },
        }

    def _baselines(self, splits: dict[str, Split]) -> dict[str, dict[str, dict[str, Any]]]:
        train, blind = splits["train"], fit_baselines(splits["train"], self.seed)
        probe = KernelProbe(train, len(self._content.answers), self.seed)
        return {
            name: {**score_baselines(blind, split, "task"), "informed": {"accuracy": probe.accuracy(split)}}
            for name, split in splits.items()
            if name != "train"
        }
