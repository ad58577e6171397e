"""What `simfl data check` finds wrong with a data set made for it."""

import pyarrow as pa
import pytest

from simfl.data.base import Dataset, Split
from simfl.data.check import check


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
    there = str(tmp_path / "a.png")
    (tmp_path / "a.png").write_bytes(b"x")
    questions = {"question": ["?", "?", ""], "answers": [["9.00"], ["no where"], []]}
    train = {
        "id": ["1", "1", "2"],
        "document": pa.array([0, 0, 1], pa.int32()),
        "client": pa.array([0, 0, 1], pa.int32()),
        **questions,
    }
    held = pages(["a", "b"], ["acme", "acme"], [["Total", "9.", "00"], []], [there, str(tmp_path / "gone.png")])
    test = {"id": ["3"], "document": pa.array([0], pa.int32()), "question": ["?"], "answers": [["x"]]}
    other = pages(["a"], ["acme"], [["x"]], [there])
    splits = {"train": Split(pa.table(train), held), "unseen": Split(pa.table(test), other)}
    return Dataset(
        "made",
        splits,
        "",
        {"dropped": {"train": {"picture missing": 2, "no answer": 1}}, "noted": {"train": {"duplicate id": 3}}},
    )


def test_everything_odd_is_found_with_its_number(dataset):
    found = {(f.split, f.what): (f.count, f.wrong) for f in check(dataset).findings}
    assert found == {
        ("train", "duplicate ids"): (1, True),
        ("train", "questions without an answer"): (1, False),
        ("train", "examples without a question"): (1, False),
        ("train", "answers not among the page's words"): (1, False),
        ("train", "pages without words"): (1, True),
        ("train", "pictures missing"): (1, True),
        ("train", "providers in two clients"): (1, True),
        ("train", "dropped: picture missing"): (2, True),
        ("train", "dropped: no answer"): (1, False),
        ("train", "noted: duplicate id"): (3, True),
        ("unseen", "documents also in train"): (1, True),
        ("unseen", "providers also in train"): (1, True),
    }
    assert not check(dataset).fine


def test_counts_are_of_each_split(dataset):
    counts = check(dataset).counts
    assert counts["train"] == {"examples": 3, "documents": 2, "words": 3, "providers": 1, "clients": 2}
    assert counts["unseen"]["documents"] == 1


def test_photographs_without_words_and_classes_are_fine():
    shown = Split(pa.table({"image": [b"a", b"b"], "label": [0, 1], "domain": ["x", "y"]}))
    held = Split(pa.table({"image": [b"c"], "label": [0], "domain": ["x"]}))
    found = check(Dataset("made", {"train": shown, "test": held}, ""))
    assert found.fine
    assert found.counts["train"] == {"examples": 2, "labels": 2, "domains": 2}
    both = check(Dataset("made", {"train": shown, "test": shown}, ""))
    assert [(f.what, f.count) for f in both.findings] == [("equal pages also in train", 2)]
