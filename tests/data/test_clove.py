"""CLOVE: records of each stage, facts of the knowledge stage, words of the scene text stage."""

import numpy as np
import pytest
from sample_files import write_image, write_npy

from simfl.data.partition.partitioners import Natural
from simfl.data.readers.clove import Clove
from simfl.errors import ConfigError, DataError


def record(stage: str, number: int = 0, **more):
    base = {
        "question": f"{stage}?",
        "question_id": f"{stage}{number}",
        "image_id": "im1",
        "answer": "x",
        "answers": ["x"] * 10,
    }
    base |= {
        "ocr_tokens": [],
        "ocr_info": [],
        "supporting_fact": [],
        "raw_question_type": "query",
        "image_source": "vg",
        "stage": stage,
    }
    return base | more


@pytest.fixture
def root(tmp_path):
    root = tmp_path / "clove"
    fact = [{"triplet": ["fork", "is used for", "eating"]}]
    box = {"topLeftX": 0.25, "topLeftY": 0.5, "width": 0.5, "height": 0.25}
    plain = ("object", "attribute", "relation", "logical", "a", "f")
    words = [{"word": "STOP", "bounding_box": box}]
    stages = {stage: record(stage) for stage in plain}
    stages["knowledge"] = record("knowledge", supporting_fact=fact)
    stages["scenetext"] = record("scenetext", image_id="t1", ocr_tokens=["STOP"], ocr_info=words)
    for stage, entry in stages.items():
        write_npy(
            root / "npy" / f"fcl_mmf_{stage}_train.npy",
            [entry, entry | {"question_id": f"{stage}1", "answers": ["y", "x", "y"]}],
        )
        write_npy(root / "npy" / f"fcl_mmf_{stage}_val.npy", [entry])
    write_image(root / "images" / "im1.jpg")
    write_image(root / "images" / "vg" / "t1.jpg")
    return root


def load(root, **settings):
    return Clove(str(root), **{"image_size": 8} | settings).load(root.parent / "cache")


def test_clove_stages_are_a_column_and_letters_become_scenes(root):
    data = load(root)
    stages = set(data.splits["train"].examples["stage"].to_pylist())
    assert stages == {
        "object",
        "attribute",
        "relation",
        "logical",
        "knowledge",
        "scenetext",
        "ShopAndDining",
        "Outdoors",
    }
    assert data.card["pages"] == {"train": 2, "valid": 2}


def test_feddat_stages_are_five_clients(root):
    data = load(root, stages=Clove.FEDDAT)
    partition = Natural(column="stage", shared_documents=True).split(data.splits["train"], 0)
    assert [name for k in range(5) for name, _ in partition.groups(k)] == sorted(Clove.FEDDAT)
    assert partition.sizes.tolist() == [2] * 5


def test_clove_counts_answers_and_reads_facts_and_words(root):
    rows = {r["id"]: r for r in load(root).splits["train"].examples.to_pylist()}
    assert (rows["object0"]["answers"], rows["object0"]["counts"]) == (["x"], [10])
    assert (rows["object1"]["answers"], rows["object1"]["counts"]) == (["y", "x"], [2, 1])
    assert rows["knowledge0"]["fact"] == "fork is used for eating"
    pages = {p["id"]: p for p in load(root).splits["train"].documents.to_pylist()}
    assert pages["t1"]["words"] == ["STOP"]
    np.testing.assert_allclose(pages["t1"]["boxes"], [0.25, 0.5, 0.75, 0.75])


def test_clove_errors_name_stage_or_row(root):
    with pytest.raises(ConfigError, match="no stage 'relations'; did you mean 'relation'"):
        load(root, stages=("relations",))
    write_npy(root / "npy" / "fcl_mmf_object_val.npy", [{"version": 1}, record("object", question=None)])
    with pytest.raises(DataError, match=r"fcl_mmf_object_val\.npy row 1: question is missing, expected text"):
        load(root)
    with pytest.raises(DataError, match="has no fcl_mmf_STAGE_train"):
        load(root / "images")
