"""VizWiz, COCO-QA and AQUA on a few rows that cover the special cases of each format."""

import pytest
from sample_files import write_image, write_json, write_lines

from simfl.data.readers.aqua import Aqua
from simfl.data.readers.coco_qa import CocoQa
from simfl.data.readers.vizwiz import VizWiz
from simfl.errors import DataError


def answers(*texts):
    return [{"answer": text, "answer_confidence": "yes"} for text in texts]


@pytest.fixture
def vizwiz(tmp_path):
    root = tmp_path / "vizwiz"
    can = {"image": "a.jpg", "question": "what is this?", "answers": answers("can", "can", "tin")}
    none = {"image": "b.jpg", "question": "colour?", "answers": answers("unanswerable")}
    train = [
        can | {"answer_type": "other", "answerable": 1},
        none | {"answer_type": "unanswerable", "answerable": 0},
    ]
    write_json(root / "Annotations" / "train.json", train)
    write_json(root / "Annotations" / "val.json", [train[0]])
    write_json(root / "Annotations" / "test.json", [{"image": "c.jpg", "question": "hidden?"}])
    for name in ("train/a.jpg", "train/b.jpg", "val/a.jpg", "test/c.jpg"):
        write_image(root / name)
    return root


def test_vizwiz_counts_answers_and_marks_unanswerable_questions(vizwiz, tmp_path):
    data = VizWiz(str(vizwiz), image_size=8).load(tmp_path / "cache")
    first, second = data.splits["train"].examples.to_pylist()
    assert (first["answers"], first["counts"], first["answerable"]) == (["can", "tin"], [2, 1], 1)
    assert (second["field"], second["answerable"]) == ("unanswerable", 0)
    assert data.splits["test"].examples.to_pylist()[0]["answers"] == []
    fewer = VizWiz(str(vizwiz), image_size=8, unanswerable=False).load(tmp_path / "cache")
    assert fewer.card["dropped"]["train"] == {"cannot be answered": 1}


def test_vizwiz_errors_name_file_row_and_field(vizwiz, tmp_path):
    write_json(vizwiz / "Annotations" / "val.json", [{"image": "a.jpg", "question": 3}])
    with pytest.raises(DataError, match=r"val\.json row 0: question is 3, expected text"):
        VizWiz(str(vizwiz)).load(tmp_path / "cache")
    write_json(vizwiz / "Annotations" / "val.json", {})
    with pytest.raises(DataError, match=r"val\.json: the content is dict, expected a list"):
        VizWiz(str(vizwiz)).load(tmp_path / "cache")


@pytest.fixture
def coco_qa(tmp_path):
    root = tmp_path / "cocoqa"
    for part, subset in (("train", "train2014"), ("test", "val2014")):
        files = {
            "questions": [f"what {i} ?" for i in range(4)],
            "answers": list("abcd"),
            "img_ids": list("1123"),
            "types": list("0123"),
        }
        for name, entries in files.items():
            write_lines(root / part / f"{name}.txt", entries)
        for i in (1, 2, 3):
            write_image(root / "images" / f"COCO_{subset}_{i:012d}.jpg")
    return root


def test_coco_qa_joins_four_files_and_divides_by_image(coco_qa, tmp_path):
    data = CocoQa(str(coco_qa), image_size=8, valid=0.4).load(tmp_path / "cache")
    rows = data.splits["test"].examples.to_pylist()
    assert [(r["answers"], r["field"], r["document"]) for r in rows] == [
        (["a"], "object", 0), (["b"], "number", 0), (["c"], "colour", 1), (["d"], "location", 2),
    ]  # fmt: skip
    shown = {s: set(data.splits[s].documents["id"].to_pylist()) for s in ("train", "valid") if s in data.splits}
    assert set().union(*shown.values()) == {"1", "2", "3"}
    assert sum(map(len, shown.values())) == 3


@pytest.mark.parametrize(
    ("name", "entries", "message"),
    [
        ("answers", ["a"], r"have different numbers of lines: questions\.txt 4, answers\.txt 1, img_ids\.txt 4"),
        ("types", list("0129"), "the type is '9', allowed: 0, 1, 2, 3"),
        ("img_ids", list("112x"), r"row 4: the image is 'x', expected a number"),
    ],
)
def test_coco_qa_refuses_inconsistent_files(coco_qa, tmp_path, name, entries, message):
    write_lines(coco_qa / "test" / f"{name}.txt", entries)
    with pytest.raises(DataError, match=message):
        CocoQa(str(coco_qa), image_size=8).load(tmp_path / "cache")


@pytest.fixture
def aqua(tmp_path):
    root = tmp_path / "aqua"
    entries = [
        {"image": "1-a.jpg", "question": "who?", "answer": "a man", "need_external_knowledge": False},
        {"image": "1-a.jpg", "question": "why?", "answer": "war", "need_external_knowledge": True},
    ]
    for name in ("train", "val", "test"):
        write_json(root / f"{name}.json", entries)
    write_image(root / "Images" / "1-a.jpg")
    return root


def test_aqua_marks_questions_that_need_knowledge(aqua, tmp_path):
    data = Aqua(str(aqua), image_size=8).load(tmp_path / "cache")
    assert [(r["field"], r["answers"], r["counts"]) for r in data.splits["train"].examples.to_pylist()] == [
        ("visual", ["a man"], [1]), ("knowledge", ["war"], [1]),
    ]  # fmt: skip
    without = Aqua(str(aqua), image_size=8, knowledge=False).load(tmp_path / "cache")
    assert without.card["dropped"]["test"] == {"needs knowledge": 1}
    write_json(
        aqua / "val.json", [{"image": "1-a.jpg", "question": "?", "answer": "x", "need_external_knowledge": "no"}]
    )
    with pytest.raises(DataError, match=r"val\.json row 0: need_external_knowledge is 'no', expected true or false"):
        Aqua(str(aqua), image_size=8).load(tmp_path / "cache")
