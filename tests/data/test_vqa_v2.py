"""VQA v2 and Abstract Scenes: questions matched with annotations, ten answers, withheld tests."""

import pytest
from sample_files import write_image, write_json

from simfl.data.readers.vqa_v2 import VqaV2
from simfl.errors import DataError


def write(
    root,
    subset,
    answers,
    names=("v2_OpenEnded_mscoco_{}_questions.json", "v2_mscoco_{}_annotations.json"),
    jpg="COCO_{}_{:012d}.jpg",
):
    """Write questions 10, 11, … on images 1, 2, …, with these answers; None: without annotations."""
    questions = [{"image_id": i, "question_id": 9 + i, "question": f"what {i}?"} for i in range(1, len(answers) + 1)]
    write_json(root / names[0].format(subset), {"info": {}, "questions": questions})
    if answers[0] is not None:
        notes = [
            {
                "question_id": 9 + i,
                "image_id": i,
                "question_type": "what",
                "answer_type": "other",
                "answers": [{"answer": x} for x in a],
            }
            for i, a in enumerate(answers, start=1)
        ]
        write_json(root / names[1].format(subset), {"annotations": notes[::-1]})
    for i in range(1, len(answers) + 1):
        write_image(root / "images" / jpg.format(subset, i))


@pytest.fixture
def root(tmp_path):
    write(tmp_path / "vqa", "train2014", [["a"] * 5 + ["b"] * 3 + ["c"] * 2, ["x"] * 10])
    write(tmp_path / "vqa", "val2014", [["y"]])
    write(tmp_path / "vqa", "test2015", [None])
    return tmp_path / "vqa"


def load(root, **settings):
    return VqaV2(str(root), **{"image_size": 8} | settings).load(root.parent / "cache")


def test_vqa_v2_matches_annotations_and_counts_answers(root):
    data = load(root)
    first, second = data.splits["train"].examples.to_pylist()
    assert (first["id"], first["answers"], first["counts"]) == ("10", ["a", "b", "c"], [5, 3, 2])
    assert (second["field"], second["question_type"], second["counts"]) == ("other", "what", [10])
    assert data.splits["test"].examples["answers"].to_pylist() == [[]]
    assert data.splits["train"].documents["id"].to_pylist() == [
        "COCO_train2014_000000000001.jpg",
        "COCO_train2014_000000000002.jpg",
    ]
    assert data.splits["train"].documents["words"].to_pylist() == [[], []]


def test_vqa_v2_reads_abstract_scenes(tmp_path):
    root = tmp_path / "vqa"
    names = ("OpenEnded_abstract_v002_{}_questions.json", "abstract_v002_{}_annotations.json")
    write(root, "train2015", [["yes"]], names, "abstract_v002_{}_{:012d}.png")
    data = load(root, scenes="abstract", image_size=0)
    assert data.splits["train"].documents["image_path"].to_pylist() == [
        str(root / "images" / "abstract_v002_train2015_000000000001.png")
    ]


def test_vqa_v2_refuses_missing_annotations(root):
    write_json(root / "v2_mscoco_val2014_annotations.json", {"annotations": []})
    with pytest.raises(
        DataError, match=r"val2014_questions\.json row 0: question_id 10 has no annotation in v2_mscoco_val2014"
    ):
        load(root)
    (root / "v2_mscoco_val2014_annotations.json").unlink()
    with pytest.raises(DataError, match="without v2_mscoco_val2014_annotations"):
        load(root)
    with pytest.raises(DataError, match="has no v2_OpenEnded_mscoco_train2014_questions"):
        load(root / "images")


def test_vqa_v2_errors_name_the_field(root):
    write_json(
        root / "v2_OpenEnded_mscoco_val2014_questions.json",
        {"questions": [{"image_id": "one", "question_id": 10, "question": "?"}]},
    )
    with pytest.raises(DataError, match=r"row 0: image_id is 'one', expected an integer"):
        load(root)


def test_vqa_v2_refuses_or_drops_missing_images(root):
    (root / "images" / "COCO_val2014_000000000001.jpg").unlink()
    with pytest.raises(DataError, match=r"row 0: the image .*COCO_val2014_000000000001\.jpg is missing"):
        load(root)
    data = load(root, missing="drop")
    assert data.card["dropped"]["valid"] == {"image missing": 1}
    assert "valid" not in data.splits
