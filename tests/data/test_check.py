"""Findings of `simfl data check` on a data set with known problems."""

import pyarrow as pa
import pytest
from PIL import Image

from simfl.data.base import Dataset, Split
from simfl.data.check import check_dataset
from simfl.data.io.images import encode_png


def pages(ids, providers, words, paths) -> pa.Table:
    return pa.table(
        {
            "id": ids,
            "provider": providers,
            "words": words,
            "boxes": [[0.0] * 4 * len(w) for w in words],
            "image_path": paths,
        }
    )


@pytest.fixture
def dataset(tmp_path):
    existing = str(tmp_path / "a.png")
    (tmp_path / "a.png").write_bytes(encode_png(Image.new("L", (2, 2))))
    questions = {"question": ["?", "?", ""], "answers": [["9.00"], ["no where"], []]}
    train = {
        "id": ["1", "1", "2"],
        "document": pa.array([0, 0, 1], pa.int32()),
        "client": pa.array([0, 0, 1], pa.int32()),
        **questions,
    }
    documents = pages(["a", "b"], ["acme", "acme"], [["Total", "9.", "00"], []], [existing, str(tmp_path / "gone.png")])
    test = {"id": ["3"], "document": pa.array([0], pa.int32()), "question": ["?"], "answers": [["x"]]}
    other = pages(["a"], ["acme"], [["x"]], [existing])
    splits = {"train": Split(pa.table(train), documents), "unseen": Split(pa.table(test), other)}
    return Dataset(
        "made",
        splits,
        "",
        {"dropped": {"train": {"image missing": 2, "no answer": 1}}, "noted": {"train": {"duplicate id": 3}}},
    )


def test_check_reports_every_problem_with_its_count(dataset):
    found = {(f.split, f.message): (f.count, f.is_error) for f in check_dataset(dataset).findings}
    assert found == {
        ("train", "duplicate ids"): (1, True),
        ("train", "questions without an answer"): (1, False),
        ("train", "examples without a question"): (1, False),
        ("train", "answers not among the page's words"): (1, False),
        ("train", "pages without words"): (1, True),
        ("train", "missing images"): (1, True),
        ("train", "images that cannot be read"): (1, True),
        ("train", "providers in two clients"): (1, True),
        ("train", "dropped: image missing"): (2, True),
        ("train", "dropped: no answer"): (1, False),
        ("train", "noted: duplicate id"): (3, True),
        ("unseen", "documents also in train"): (1, True),
        ("unseen", "providers also in train"): (1, True),
    }
    assert not check_dataset(dataset).passed


def test_check_counts_each_split(dataset):
    counts = check_dataset(dataset).counts
    assert counts["train"] == {"examples": 3, "documents": 2, "words": 3, "providers": 1, "clients": 2}
    assert counts["unseen"]["documents"] == 1


def test_check_accepts_images_with_labels():
    first, second, third = (encode_png(Image.new("L", (2, 2), grey)) for grey in (0, 9, 99))
    shown = Split(pa.table({"image": [first, second], "label": [0, 1], "domain": ["x", "y"]}))
    test = Split(pa.table({"image": [third], "label": [0], "domain": ["x"]}))
    found = check_dataset(Dataset("made", {"train": shown, "test": test}, ""))
    assert found.passed
    assert found.counts["train"] == {"examples": 2, "labels": 2, "domains": 2}
    both = check_dataset(Dataset("made", {"train": shown, "test": shown}, ""))
    assert [(f.message, f.count) for f in both.findings] == [("equal images also in train", 2)]
