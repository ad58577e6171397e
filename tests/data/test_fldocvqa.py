"""Output of fldocvqa's converter: no header, duplicate ids, and its own partition file."""

from typing import Any

import pytest
from sample_files import write_image, write_json, write_npy

from simfl.data.partition.partitioners import Official
from simfl.data.readers.fldocvqa import Fldocvqa
from simfl.errors import DataError


def record(image: str, number: int, shared: dict | None = None, **more):
    base: dict[str, Any] = {
        "metadata": shared if shared is not None else {"id": f"{image}{number}"},
        "question": f"what {number}?",
        "answers": ["x", "x", "y"],
    }
    base |= {
        "image_name": image,
        "image_height": 10,
        "image_width": 10,
        "ocr_tokens": ["a", " "],
        "ocr_normalized_boxes": [[0, 0, 0.5, 1]] * 2,
    }
    return base | more


@pytest.fixture
def root(tmp_path):
    root = tmp_path / "due"
    for name in ("wtq", "docvqa"):
        same = {"id": "last"}
        write_npy(root / name / "train" / "vqa.npy", [record("p", 0, same), record("p", 1, same), record("q", 2)])
        write_npy(root / name / "val" / "vqa.npy", [record("r", 0)])
        write_npy(root / name / "test" / "vqa.npy", [record("s", 0, answers=[])])
        for image in "pqrs":
            write_image(root / name / "images" / f"{image}.png")
    clients = {"0": {"wtq": [0, 1, 2]}, "1": {"docvqa": [2]}, "10": {"docvqa": [0, 1]}}
    write_json(root / "part.json", {"partitions": {"docvqa": clients, "ssl": {}}, "dset_stat": {}})
    return root


def load(root, **settings):
    return Fldocvqa(str(root), sets=("wtq", "docvqa"), image_size=8, **settings).load(root.parent / "cache")


def test_fldocvqa_joins_its_sets_and_makes_duplicate_ids_unique(root):
    data = load(root)
    rows = data.splits["train"].examples.to_pylist()
    assert [r["id"] for r in rows][:3] == ["wtq/last", "wtq/last#2", "wtq/q2"]
    assert data.card["noted"]["train"] == {"duplicate id": 2}
    assert (rows[0]["answers"], rows[0]["dataset"], rows[5]["dataset"]) == (["x", "y"], "wtq", "docvqa")
    assert data.splits["train"].documents["id"].to_pylist() == ["wtq/p", "wtq/q", "docvqa/p", "docvqa/q"]
    assert data.splits["train"].documents["words"][0].as_py() == ["a"]
    assert data.splits["test"].examples["answers"].to_pylist() == [[], []]


def test_fldocvqa_partition_file_defines_official_clients_by_number(root):
    data = load(root, partition=str(root / "part.json"))
    partition = Official().split(data.splits["train"], 0)
    assert [partition.rows(k).tolist() for k in range(3)] == [[0, 1, 2], [5], [3, 4]]


def test_fldocvqa_refuses_inconsistent_files(root):
    write_json(root / "part.json", {"partitions": {"docvqa": {"0": {"wtq": [0]}, "1": {"wtq": [0]}}}})
    with pytest.raises(DataError, match="row 0 of wtq belongs to two clients"):
        load(root, partition=str(root / "part.json"))
    write_npy(root / "wtq" / "val" / "vqa.npy", [record("r", 0, ocr_normalized_boxes=[[1, 2]])])
    with pytest.raises(
        DataError, match=r"wtq/val/vqa\.npy row 0: ocr_normalized_boxes does not have 4 numbers for each of 2"
    ):
        load(root)
    (root / "docvqa" / "test" / "vqa.npy").unlink()
    with pytest.raises(DataError, match=r"docvqa/test/vqa\.npy is missing"):
        load(root)
