"""NLVR2, SNLI-VE and VCR on a few lines that cover the special cases of each format."""

import numpy as np
import pytest
from sample_files import write_image, write_json, write_lines

from simfl.data.readers.nlvr2 import Nlvr2
from simfl.data.readers.snli_ve import SnliVe
from simfl.data.readers.vcr import Vcr, resolve_objects
from simfl.errors import DataError


@pytest.fixture
def nlvr2(tmp_path):
    root = tmp_path / "nlvr2"
    for part in ("train", "dev", "test1"):
        entries = [
            {"sentence": f"{n} dogs", "label": label, "identifier": f"{part}-1-0-{n}"}
            for n, label in ((0, "True"), (1, "False"))
        ]
        write_lines(root / "data" / f"{part}.json", [t | {"directory": 7, "synset": "dog"} for t in entries])
        for side in (0, 1):
            folder = "images/train/7" if part == "train" else f"images/{part}"
            write_image(root / folder / f"{part}-1-0-img{side}.png")
    return root


def test_nlvr2_reads_two_images_a_sentence_in_both_layouts(nlvr2, tmp_path):
    data = Nlvr2(str(nlvr2), image_size=8).load(tmp_path / "cache")
    rows = data.splits["train"].examples.to_pylist()
    assert [(r["document"], r["second"], r["label"], r["answers"]) for r in rows] == [
        (0, 1, 1, ["True"]),
        (0, 1, 0, ["False"]),
    ]
    assert data.splits["test"].documents["id"].to_pylist() == ["test1-1-0-img0.png", "test1-1-0-img1.png"]
    assert rows[0]["synset"] == "dog"


def test_nlvr2_drops_a_sentence_if_one_image_is_missing(nlvr2, tmp_path):
    (nlvr2 / "images" / "dev" / "dev-1-0-img1.png").unlink()
    with pytest.raises(DataError, match=r"dev\.json row 1: the image .*dev-1-0-img1\.png is missing"):
        Nlvr2(str(nlvr2), image_size=8).load(tmp_path / "cache")
    data = Nlvr2(str(nlvr2), image_size=8, missing="drop").load(tmp_path / "cache")
    assert data.card["dropped"]["valid"] == {"image missing": 2}
    write_lines(nlvr2 / "data" / "dev.json", [{"sentence": "x", "label": "true", "identifier": "train-1-0-0"}])
    with pytest.raises(DataError, match=r"dev\.json row 1: label is 'true', allowed: False, True"):
        Nlvr2(str(nlvr2), image_size=8, missing="drop").load(tmp_path / "cache")


@pytest.fixture
def snli_ve(tmp_path):
    root = tmp_path / "snli"
    for part, field in (("train", "Flickr30K_ID"), ("dev", "Flikr30kID"), ("test", "Flickr30kID")):
        entries = [
            {field: "0012", "sentence2": "a man", "gold_label": "neutral", "pairID": "1"},
            {field: 12, "sentence2": "a dog", "gold_label": "contradiction", "pairID": "2"},
            {field: "12", "sentence2": "?", "gold_label": "-", "pairID": "3"},
        ]
        write_lines(root / f"snli_ve_{part}.jsonl", entries)
    write_image(root / "flickr30k_images" / "12.jpg")
    return root


def test_snli_ve_reads_every_id_spelling_and_uses_climb_labels(snli_ve, tmp_path):
    data = SnliVe(str(snli_ve), image_size=8).load(tmp_path / "cache")
    for split in ("train", "valid", "test"):
        rows = data.splits[split].examples.to_pylist()
        assert [(r["label"], r["answers"], r["question"]) for r in rows] == [
            (2, ["neutral"], "a man"),
            (1, ["contradiction"], "a dog"),
        ]
        assert data.card["dropped"][split] == {"no gold label": 1}
    write_lines(snli_ve / "snli_ve_dev.jsonl", [{"sentence2": "x", "gold_label": "neutral", "pairID": "1"}])
    with pytest.raises(DataError, match=r"row 1: Flickr30K_ID is missing, expected text or an integer"):
        SnliVe(str(snli_ve), image_size=8).load(tmp_path / "cache")


OBJECTS = ["person", "dog", "person"]


def vcr_line(id="train-0", **more):
    base = {
        "annot_id": id,
        "objects": OBJECTS,
        "img_fn": "film/a.jpg",
        "metadata_fn": "film/a.json",
        "answer_label": 2,
        "rationale_label": 0,
    }
    base |= {
        "question": ["Why", "does", [0, 2], "see", [1], "?"],
        "answer_choices": [["no"], ["yes"], [[2], "runs"], ["x"]],
    }
    base |= {"rationale_choices": [["because", [1], "barks"], ["a"], ["b"], ["c"]]} | more
    return {k: v for k, v in base.items() if v is not None}


@pytest.fixture
def vcr(tmp_path):
    root = tmp_path / "vcr"
    write_lines(root / "train.jsonl", [vcr_line(), vcr_line("train-1")])
    write_lines(root / "test.jsonl", [vcr_line("test-0", answer_label=None, rationale_label=None)])
    write_image(root / "vcr1images" / "film" / "a.jpg", (100, 50))
    boxes = [[0, 0, 50, 50, 0.9], [10, 10, 20, 20, 0.8], [50, 0, 110, 50, 0.7]]
    write_json(root / "vcr1images" / "film" / "a.json", {"boxes": boxes, "width": 100, "height": 50, "names": OBJECTS})
    return root


def test_vcr_objects_get_gender_neutral_names():
    assert resolve_objects("x", ["Does", [0, 2], "see", [1], "?"], OBJECTS) == "Does Casey and Riley see the gray dog ?"


def test_vcr_reads_four_choices_and_objects_as_words(vcr, tmp_path):
    data = Vcr(str(vcr), image_size=8).load(tmp_path / "cache")
    row = data.splits["train"].examples.to_pylist()[0]
    assert (row["choices"], row["label"], row["answers"]) == (["no", "yes", "Riley runs", "x"], 2, ["Riley runs"])
    page = data.splits["train"].documents.to_pylist()[0]
    assert page["words"] == OBJECTS
    np.testing.assert_allclose(page["boxes"][4:], [0.1, 0.2, 0.2, 0.4, 0.5, 0, 1, 1], rtol=1e-6)
    hidden = data.splits["test"].examples.to_pylist()[0]
    assert (hidden["label"], hidden["answers"], len(hidden["choices"])) == (None, [], 4)


def test_vcr_qar_appends_the_correct_answer_to_the_question(vcr, tmp_path):
    data = Vcr(str(vcr), task="qar", image_size=8).load(tmp_path / "cache")
    row = data.splits["train"].examples.to_pylist()[0]
    assert row["question"] == "Why does Casey and Riley see the gray dog ? Riley runs"
    assert row["answers"] == ["because the gray dog barks"]
    assert data.card["dropped"]["test"] == {"answer withheld": 1}


def test_vcr_reads_images_with_drawn_boxes(vcr, tmp_path):
    for id in ("train-0", "train-1"):
        write_image(vcr / "drawn_images" / "bbox" / "train" / "qa" / f"{id}.jpg")
    write_image(vcr / "drawn_images" / "bbox" / "test" / "qa" / "test-0.jpg")
    data = Vcr(str(vcr), drawn=True, image_size=8).load(tmp_path / "cache")
    assert data.splits["train"].documents["id"].to_pylist() == ["train-0.jpg", "train-1.jpg"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (vcr_line(question=["who", [3]]), r"train\.jsonl row 1: question refers to \[3\], the image has 3 objects"),
        (vcr_line(question="who"), "row 1: question is str, expected a list of words"),
        (vcr_line(answer_choices=[["a"]]), "row 1: answer_choices does not have four entries"),
        (vcr_line(answer_label=4), "row 1: answer_label is 4, allowed: 0 to 3"),
        (vcr_line(objects=[*OBJECTS, "car"]), "for each of 4 objects"),
    ],
)
def test_vcr_errors_name_the_row(vcr, tmp_path, line, message):
    write_lines(vcr / "train.jsonl", [line])
    with pytest.raises(DataError, match=message):
        Vcr(str(vcr), image_size=8).load(tmp_path / "cache")
