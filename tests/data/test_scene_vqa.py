"""The bundled benchmark of scenes: reproducible, with balanced answers that need the picture."""

from __future__ import annotations

import io
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from simfl.config import partitions
from simfl.data import leaks
from simfl.data.base import DOCUMENTS, QUESTIONS, Dataset, Split
from simfl.data.benchmarks.scene_vqa import SceneVqa, drawing, emoji, stamps
from simfl.data.benchmarks.scene_vqa.benchmark import CONTENTS
from simfl.data.benchmarks.scene_vqa.content import CATEGORIES
from simfl.data.benchmarks.scene_vqa.emoji import SCENES
from simfl.data.benchmarks.scene_vqa.plan import PlacedThing, PlanSettings, ScenePlan, plan_picture
from simfl.data.benchmarks.scene_vqa.questions import TASKS, SceneQuestion, balance_yes_no
from simfl.errors import ConfigError, DataError

SMALL = SceneVqa(train=40, valid=8, test=12, test_novel=10, image_size=32)
THINGS = {thing.name: thing for things in SCENES.values() for thing in things}
ANSWERS = CONTENTS["emoji"].answers
GOLDEN = "557751f113c464f36da2f9eb1dfebfe485010e79b1a9f7a207db6f0f28308e9e"
SPECS = Path(__file__).parents[2] / "partitions"


@pytest.fixture(scope="module")
def small() -> Dataset:
    return SMALL.build()


def test_scene_vqa_content_has_the_golden_hash(small: Dataset) -> None:
    assert small.sha256 == GOLDEN, "the pictures or questions changed: increase VERSION, then update this hash"


def test_scenes_are_loaded_from_the_cache_without_rebuilding(small: Dataset, tmp_path: Path) -> None:
    first = SMALL.load(tmp_path)
    made = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.arrow")}
    assert first.sha256 == SMALL.load(tmp_path).sha256 == small.sha256
    assert len(made) == 8
    assert {path: path.stat().st_mtime_ns for path in made} == made


def test_scene_vqa_splits_have_the_requested_columns_and_sizes(small: Dataset) -> None:
    """There are six scenes; a picture is dropped only if balancing drops all of its questions."""
    for name, each in (("train", 40), ("valid", 8), ("test", 12), ("test_novel", 10)):
        split = small.splits[name]
        assert 0.9 * 6 * each <= split.documents.num_rows <= 6 * each
        assert split.documents.select(DOCUMENTS.names).schema.equals(DOCUMENTS)
        assert split.examples.select(QUESTIONS.names).schema.equals(QUESTIONS)
        assert set(split.examples["scene"].to_pylist()) == set(SCENES)
        assert set(split.examples["task"].to_pylist()) <= set(TASKS)
        labels, answers = split.examples["label"].to_pylist(), split.examples["answers"].to_pylist()
        assert [[ANSWERS[label]] for label in labels] == answers
    assert set(small.splits["train"].examples["task"].to_pylist()) == set(TASKS)
    assert len(ANSWERS) == small.card["num_classes"] == 62


def restore_plan(picture: dict, grid: int = 3) -> ScenePlan:
    """Reconstruct the plan of a stored picture from its columns."""
    places = np.array(picture["places"]).reshape(-1, 4)
    middles = ((places[:, :2] + places[:, 2:]) / 2 * grid).astype(int)
    placed = tuple(
        PlacedThing(THINGS[name], drawn, colour, row, column, 1.0, 0.0, 0.0, False)
        for name, drawn, colour, (column, row) in zip(
            picture["things"], picture["drawings"], picture["colours"], middles.tolist(), strict=True
        )
    )
    return ScenePlan(picture["id"], picture["scene"], picture["provider"], SCENES[picture["scene"]], placed)


def test_every_answer_follows_from_the_things_in_the_picture(small: Dataset) -> None:
    for split in small.splits.values():
        pictures = [restore_plan(picture) for picture in split.documents.to_pylist()]
        for row in split.examples.to_pylist():
            pairs = set(TASKS[row["task"]](pictures[row["document"]], 3))
            assert (row["question"], row["answers"][0]) in pairs


def test_each_wording_has_as_many_answers_yes_as_no(small: Dataset) -> None:
    for split in small.splits.values():
        rows = zip(split.examples["question"].to_pylist(), split.examples["answers"].to_pylist(), strict=True)
        counts = Counter((question, answers[0]) for question, answers in rows if answers[0] in ("yes", "no"))
        assert counts
        assert all(counts[text, "yes"] == counts[text, "no"] for text, _ in counts)


def test_balancing_drops_the_last_questions_of_the_more_frequent_answer() -> None:
    questions = [
        SceneQuestion("exists", text, answer) for text, answer in (("a", "yes"), ("a", "yes"), ("a", "no"), ("b", "no"))
    ]
    questions.append(SceneQuestion("count", "c", "2"))
    assert balance_yes_no(questions) == [True, False, True, False, True]


def test_no_answer_to_a_task_is_much_more_frequent_than_another(small: Dataset) -> None:
    train = small.splits["train"].examples
    for scene in SCENES:
        for task in ("count", "colour", "relation"):
            rows = [row["answers"][0] for row in train.to_pylist() if (row["scene"], row["task"]) == (scene, task)]
            counts = Counter(rows)
            assert max(counts.values()) <= 0.35 * len(rows) + 2, (scene, task, counts)


def test_baselines_without_the_picture_stay_low_on_scenes(small: Dataset) -> None:
    baselines: Any = small.card["baselines"]
    for split, scores in baselines.items():
        assert scores["question_only"]["accuracy"] < 0.45, split
        assert scores["majority"]["accuracy"] < 0.45, split


def test_held_out_drawings_are_in_test_novel_only_and_in_all_its_pictures(small: Dataset) -> None:
    novel = {drawn for thing in THINGS.values() for drawn in thing.novel}
    seen = {drawn for thing in THINGS.values() for drawn in thing.drawings}
    assert not novel & seen
    assert 0.18 < len(novel) / len(novel | seen) < 0.4
    for name, split in small.splits.items():
        shown = [set(drawings) & novel for drawings in split.documents["drawings"].to_pylist()]
        assert all(shown) if name == "test_novel" else not any(shown)


def test_no_scene_picture_is_in_two_splits(small: Dataset) -> None:
    names = list(small.splits)
    for first, second in [(a, b) for a in names for b in names if a < b]:
        assert not leaks.shared_values(small.splits[first], small.splits[second], leaks.CONTENT)
        assert not leaks.shared_values(small.splits[first], small.splits[second], leaks.DOCUMENT)


def test_scene_pictures_have_the_requested_size_and_are_not_blank(small: Dataset) -> None:
    for picture in small.splits["test"].documents.to_pylist():
        image = Image.open(io.BytesIO(picture["image"]))
        assert image.size == (picture["width"], picture["height"]) == (32, 32)
        assert np.asarray(image).std() > 10


def test_painted_things_get_the_colour_and_others_keep_their_own() -> None:
    """The mean ink of a blue car is mostly blue; the unpainted cow is unchanged."""
    ink = np.asarray(drawing.sprite(emoji.file("1f697"), "blue"), np.float64)
    red, _, blue = ink[ink[..., 3] > 128][:, :3].mean(0)
    assert blue > red + 60
    with Image.open(emoji.file("1f404")) as stored:
        cow = stored.convert("RGBA")
    assert drawing.sprite(emoji.file("1f404"), "").tobytes() == cow.crop(cow.getchannel("A").getbbox()).tobytes()


def test_things_stay_inside_their_cells() -> None:
    settings = PlanSettings(seed=1, grid=3, fewest=2, most=5)
    for number in range(50):
        for placed in plan_picture(settings, "train", "farm", SCENES["farm"], number).placed:
            for shift in (placed.right, placed.down):
                assert abs(shift) + placed.size / 2 <= 0.5 + 1e-9


def test_unseen_scenes_are_in_the_split_unseen_only() -> None:
    data = SceneVqa(train=6, valid=2, test=3, test_novel=2, image_size=16, unseen=("sea", "street")).build()
    scenes = {name: set(split.examples["scene"].to_pylist()) for name, split in data.splits.items()}
    assert scenes["unseen"] == {"sea", "street"}
    assert all(found == set(SCENES) - {"sea", "street"} for name, found in scenes.items() if name != "unseen")


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"scenes": ("farn",)}, r"^data\.scenes: 'farn' given; .*farm[^\n]*$"),
        ({"tasks": ("colors",)}, r"^data\.tasks: 'colors' given; [^\n]*$"),
        ({"unseen": tuple(SCENES)}, r"^data\.tasks, data\.scenes: [^\n]*$"),
        (
            {"grid": 2, "most": 5},
            r"^data\.fewest, data\.most: 2, 5 given; with data\.grid 2, fewest <= most <= 4 [^\n]*$",
        ),
        ({"fewest": 4, "most": 3}, r"^data\.fewest, data\.most: 4, 3 given; [^\n]*$"),
    ],
)
def test_invalid_scene_settings_are_rejected_in_one_line(settings: dict, line: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=line):
        SceneVqa(**settings).load(tmp_path)


def test_a_missing_emoji_package_is_named_with_the_extra_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emoji, "ANCHOR", replace(emoji.ANCHOR, package="no-such-package"))
    with pytest.raises(DataError, match=r"^scene_vqa: [^\n]*no-such-package[^\n]*pip install 'simfl\[benchmarks\]'$"):
        emoji.file("1f404")


def test_missing_debian_packages_are_named_with_their_command(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SIMFL_SHARE", str(tmp_path))
    line = r"^data\.content: [^\n]*stamps is missing; [^\n]*: apt install tuxpaint-stamps-default mate-backgrounds$"
    with pytest.raises(DataError, match=line):
        SceneVqa(content="stamps").load(tmp_path / "cache")


def test_stamps_and_photographs_can_replace_emoji(monkeypatch, tmp_path: Path) -> None:
    """A plain rectangle replaces every stamp, and a grey picture every photograph."""
    monkeypatch.setenv("SIMFL_SHARE", str(tmp_path))
    for name in {d for things in stamps.SCENES.values() for t in things for d in (*t.drawings, *t.novel)}:
        (tmp_path / "tuxpaint/stamps" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGBA", (40, 30), (200, 60, 60, 255)).save(tmp_path / "tuxpaint/stamps" / f"{name}.png")
    (tmp_path / "backgrounds/mate/nature").mkdir(parents=True)
    for name in {name for names in stamps.BACKGROUNDS.values() for name in names}:
        Image.new("RGB", (900, 600), "grey").save(tmp_path / "backgrounds/mate/nature" / name)
    data = SceneVqa(content="stamps", train=6, valid=2, test=3, test_novel=2, image_size=16).build()
    assert "tractor" in data.card["answers"]
    assert "seagull" in data.card["answers"]
    assert data.card["sources"] == ["tuxpaint-stamps-default", "mate-backgrounds"]
    stamps.background.cache_clear()


@pytest.mark.parametrize("content", ["emoji", "stamps"])
def test_things_have_known_categories_and_scenes_have_several(content: str) -> None:
    for things in CONTENTS[content].scenes.values():
        assert len({thing.category for thing in things}) >= 3
        assert len(things) == 6
        assert all(thing.category in CATEGORIES for thing in things)


@pytest.mark.parametrize(
    ("name", "clients"),
    [("scene", 6), ("scene_30", 30), ("task", 7), ("continual", 6), ("album", 10), ("dirichlet", 12)],
)
def test_scene_partitions_cover_the_data_and_separate_scenes_or_tasks(
    name: str, clients: int, small: Dataset, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    spec = partitions.load(SPECS / f"scene_vqa_{name}.yaml")
    monkeypatch.setattr(SceneVqa, "load", lambda self, cache: small)
    built = partitions.build(spec, tmp_path)
    assert len(built.partition) == clients
    train: Split = small.splits["train"]
    assert sorted(built.partition.order.tolist()) == list(range(len(train)))
    if name in ("scene", "task", "continual"):
        column = train.examples["task" if name == "task" else "scene"].to_pylist()
        values_of = [{column[row] for row in built.partition.rows(client)} for client in range(clients)]
        assert all(len(values) == 1 for values in values_of)
        if name == "continual":
            assert [values.pop() for values in values_of] == ["farm", "garden", "street", "workshop", "kitchen", "sea"]


@pytest.mark.slow
def test_the_default_scene_vqa_build_has_the_published_hash() -> None:
    assert SceneVqa().build().sha256 == "9599c19fad33fb10494c9af2c4721f30c682867d9e2567eca1195e4def98f0fe"
