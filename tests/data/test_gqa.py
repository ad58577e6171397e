"""GQA with Places365 scenes: ids that begin with n, uncertain images, unseen scenes, subsampling, shards."""

from pathlib import Path

import pytest
from sample_files import write_image, write_json, write_lines

from simfl.data.partition.partitioners import Natural
from simfl.data.readers.gqa import Gqa
from simfl.errors import ConfigError, DataError

IMAGES = {"1": "Home", "2": "Home", "n3": "Sports", "4": "Sports", "5": None, "6": "Home"}


def question(image: str, answer: str | None, **more):
    types = {"structural": "query", "semantic": "attr", "detailed": "colour"}
    record = {"imageId": image, "question": f"what on {image}?", "answer": answer, "types": types} | more
    return {k: v for k, v in record.items() if v is not None}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Write twelve questions on six images: two each, one of them answered by yes."""
    root = tmp_path / "gqa"
    asked = {f"{image}-{i}": question(image, ("red", "yes")[i]) for image in IMAGES for i in range(2)}
    write_json(root / "questions" / "train_balanced_questions.json", asked)
    write_json(
        root / "questions" / "val_balanced_questions.json", {"v1": question("1", "blue"), "v2": question("n3", "no")}
    )
    for image in IMAGES:
        write_image(root / "images" / f"{image}.jpg")
    rows = ["image,category,probability", "1.jpg,/h/home,0.9", "2,/h/home,0.5", "2,/g/gym,0.3", "n3,/s/stadium,0.61"]
    write_lines(root / "scenes.csv", [*rows, "4,/s/stadium,0.6", "5,/m/moon,0.99"])
    write_json(root / "map.json", {"/h/home": "Home", "stadium": "Sports", "/g/gym": "Sports"})
    return root


def load(root: Path, scenes: bool = False, **settings):
    scene_files = {"scenes": str(root / "scenes.csv"), "scene_map": str(root / "map.json")} if scenes else {}
    return Gqa(str(root), **{"image_size": 8} | scene_files | settings).load(root.parent / "cache")


def test_gqa_reads_question_types_and_image_ids_with_letters(root):
    data = load(root)
    rows = data.splits["train"].examples.to_pylist()
    assert len(rows) == 12
    assert (rows[0]["field"], rows[0]["semantic"], rows[0]["detailed"], rows[0]["scene"]) == (
        "query",
        "attr",
        "colour",
        "",
    )
    assert data.splits["train"].documents["id"].to_pylist() == list(IMAGES)


def test_gqa_scenes_need_a_confident_category_with_a_scene(root):
    data = load(root, scenes=True)
    rows = data.splits["train"].examples.to_pylist()
    assert [(r["id"], r["scene"]) for r in rows] == [
        ("1-0", "Home"),
        ("1-1", "Home"),
        ("n3-0", "Sports"),
        ("n3-1", "Sports"),
    ]
    assert data.card["dropped"]["train"] == {
        "scene below confidence": 4, "category without a scene": 2, "image without scene probabilities": 2,
    }  # fmt: skip
    assert Natural(column="scene").split(data.splits["train"], 0).sizes.tolist() == [2, 2]


def test_gqa_unseen_scenes_are_not_in_training(root):
    data = load(root, scenes=True, unseen=("Sports",), confidence=0.4)
    assert set(data.splits["train"].examples["scene"].to_pylist()) == {"Home"}
    assert data.splits["unseen"].examples["id"].to_pylist() == ["v2"]
    assert data.splits["valid"].examples["id"].to_pylist() == ["v1"]
    assert data.card["dropped"]["train"]["unseen scene"] == 4


def test_gqa_subsamples_yes_no_questions_reproducibly(root):
    first, again = (load(root, yes_no=0.5) for _ in range(2))
    answers = first.splits["train"].examples["answers"].to_pylist()
    assert answers.count(["red"]) == 6
    assert first.card["dropped"]["train"]["yes/no question, subsampled"] == 6 - answers.count(["yes"])
    assert first.sha256 == again.sha256


def test_gqa_reads_shards_in_numeric_order(root):
    for shard in (10, 2):
        name = f"train_all_questions_{shard}.json"
        write_json(root / "train_all_questions" / name, {f"q{shard}": question("1", "x")})
    assert load(root, questions="all").splits["train"].examples["id"].to_pylist() == ["q2", "q10"]


def test_gqa_errors_name_file_and_question(root):
    write_json(root / "questions" / "val_balanced_questions.json", {"v1": question("1", "x", question=5)})
    with pytest.raises(DataError, match=r"val_balanced_questions\.json question v1: question is 5, expected text"):
        load(root)
    with pytest.raises(DataError, match=r"train_all_questions\.json is missing"):
        load(root, questions="all")
    write_json(root / "questions" / "val_balanced_questions.json", {"v1": question("9", "x")})
    with pytest.raises(DataError, match=r"question v1: the image .*9\.jpg is missing"):
        load(root)


@pytest.mark.parametrize(
    ("csv", "message"),
    [
        (["image,category"], r"scenes\.csv row 1: no column 'probability'"),
        (["image,category,probability", "1,/h/home,high"], r"scenes\.csv row 2: probability is 'high'"),
        (["image,category,probability", "1,/h/home"], r"scenes\.csv row 2: too few columns"),
    ],
)
def test_gqa_scene_probability_errors_name_the_row(root, csv, message):
    write_lines(root / "scenes.csv", csv)
    with pytest.raises(DataError, match=message):
        load(root, scenes=True)


def test_gqa_scene_map_is_checked_against_known_categories(root):
    write_lines(root / "categories_places365.txt", ["/h/home 0", "/s/stadium 1", "/g/gym 2"])
    assert len(load(root, scenes=True).splits["train"]) == 4
    write_json(root / "map.json", {"/h/hone": "Home"})
    with pytest.raises(
        DataError, match=r"'/h/hone' is not a category of categories_places365\.txt; did you mean 'home'"
    ):
        load(root, scenes=True)
    write_json(root / "map.json", {"/h/home": 3})
    with pytest.raises(DataError, match="the scene of '/h/home' is 3, expected text"):
        load(root, scenes=True)


def test_gqa_scene_settings_must_be_given_together(root):
    with pytest.raises(ConfigError, match="give both or neither"):
        Gqa(str(root), scenes="x").load(root)
    with pytest.raises(ConfigError, match=r"unseen: has no effect without data\.scenes"):
        Gqa(str(root), unseen=("Home",)).load(root)
    with pytest.raises(DataError, match="nowhere is not a file"):
        Gqa(str(root), scenes="nowhere", scene_map="nowhere").load(root)
