"""Data sets saved by save_to_disk of the library `datasets`."""

import io
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from simfl.data.readers.hf_disk import HfDisk
from simfl.errors import ConfigError, DataError


def png(shade: int) -> dict:
    out = io.BytesIO()
    Image.new("RGB", (20, 10), (shade, 0, 0)).save(out, "PNG")
    return {"bytes": out.getvalue(), "path": None}


def save(folder: Path, rows: list[dict], shards: int = 1, features: dict | None = None, **state) -> None:
    """Write the files of save_to_disk: Arrow streams, state.json and dataset_info.json."""
    folder.mkdir(parents=True)
    names = [f"data-{i:05}-of-{shards:05}.arrow" for i in range(shards)]
    for i, name in enumerate(names):
        table = pa.Table.from_pylist(rows[i::shards])
        with pa.ipc.new_stream(str(folder / name), table.schema) as writer:
            writer.write_table(table)
    (folder / "state.json").write_text(
        json.dumps({"_data_files": [{"filename": n} for n in names], "_split": folder.name} | state)
    )
    (folder / "dataset_info.json").write_text(json.dumps({"features": features or {}}))


@pytest.fixture
def asked(tmp_path):
    root = tmp_path / "asked"
    page = {"answer": ["x", "x", "y"], "tokens": ["a"], "at": [[0, 0, 500, 1000]]}
    questions = [{"qid": i, "query": {"en": f"what {i}?"}, "image": png(i // 2), "who": f"p{i}"} for i in range(4)]
    rows = [row | page for row in questions]
    save(root / "train", rows, shards=2)
    save(root / "validation", rows[:1])
    (root / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "validation"]}))
    return root


ASKED = {"id": "qid", "question": "query.en", "answers": "answer", "image": "image", "words": "tokens", "boxes": "at"}


def load(root: Path, columns: dict, **settings):
    return HfDisk(str(root), columns, image_size=8, **settings).load(root.parent / "cache")


def test_hf_disk_reads_all_shards_and_stores_each_page_once(asked):
    data = load(asked, ASKED, groups=("who",), box_scale=1000.0)
    rows = data.splits["train"].examples.to_pylist()
    assert [(r["id"], r["question"], r["who"], r["document"]) for r in rows] == [
        ("0", "what 0?", "p0", 0), ("2", "what 2?", "p2", 1), ("1", "what 1?", "p1", 0), ("3", "what 3?", "p3", 1),
    ]  # fmt: skip
    assert (rows[0]["answers"], rows[0]["counts"]) == (["x", "y"], [2, 1])
    page = data.splits["train"].documents.to_pylist()[0]
    assert page["words"] == ["a"]
    np.testing.assert_allclose(page["boxes"], [0, 0, 0.5, 1])
    assert set(data.splits) == {"train", "valid"}


def test_hf_disk_reads_class_names_and_a_single_split_as_train(tmp_path):
    rows = [{"label": i % 2, "image": png(i), "style": "photo"} for i in range(3)]
    save(tmp_path / "shown", rows, features={"label": {"names": ["cat", "dog"], "_type": "ClassLabel"}})
    data = load(tmp_path / "shown", {"label": "label", "image": "image", "provider": "style"})
    assert data.splits["train"].examples.select(["label", "class", "domain"]).to_pylist()[1] == {
        "label": 1,
        "class": "dog",
        "domain": "photo",
    }
    assert (data.card["num_classes"], data.card["shape"]) == (2, [3, 8, 8])


def test_hf_disk_reads_texts_with_a_class(tmp_path):
    rows = [{"label": i % 2, "text": f"order {i}", "shop": f"s{i}"} for i in range(3)]
    save(tmp_path / "told", rows, features={"label": {"names": ["late", "good"], "_type": "ClassLabel"}})
    data = load(tmp_path / "told", {"label": "label", "text": "text"}, groups=("shop",))
    assert data.splits["train"].examples.select(["text", "label", "class", "shop"]).to_pylist()[1] == {
        "text": "order 1",
        "label": 1,
        "class": "good",
        "shop": "s1",
    }
    assert data.card["num_classes"] == 2


def test_hf_disk_reads_word_images(tmp_path):
    save(tmp_path / "words", [{"text": "Hello", "image": png(1)}])
    row = load(tmp_path / "words", {"text": "text", "image": "image"}).splits["train"].examples.to_pylist()[0]
    assert (row["text"], row["source"]) == ("Hello", "words")


def test_hf_disk_suggests_the_nearest_column(asked):
    with pytest.raises(ConfigError, match="unknown column 'questoin'; did you mean 'question'"):
        load(asked, {"questoin": "query"})
    with pytest.raises(ConfigError, match="one of question, label and text is required"):
        load(asked, {"image": "image"})
    with pytest.raises(ConfigError, match="has no 'querry'; did you mean 'query'"):
        load(asked, {"question": "querry"})


def test_hf_disk_errors_name_file_and_row(tmp_path, asked):
    with pytest.raises(DataError, match=r"row 0: question is \{'en': 'what 0\?'\}, expected text"):
        load(asked, ASKED | {"question": "query"})
    (asked / "train" / "data-00001-of-00002.arrow").write_bytes(b"x")
    with pytest.raises(DataError, match=r"data-00001-of-00002\.arrow: not a readable Arrow stream"):
        load(asked, ASKED, box_scale=1000.0)
    save(tmp_path / "picked", [{"text": "a", "image": png(1)}], _indices_files=[{"filename": "indices.arrow"}])
    with pytest.raises(DataError, match="saved with a selection of rows"):
        load(tmp_path / "picked", {"text": "text", "image": "image"})
    save(tmp_path / "gone", [{"text": "a", "image": {"bytes": None, "path": "nowhere.png"}}])
    with pytest.raises(DataError, match=r"row 0: the image 'nowhere\.png' is not saved with the data"):
        load(tmp_path / "gone", {"text": "text", "image": "image"})
    save(tmp_path / "bad", [{"text": "a", "image": {"bytes": b"x", "path": None}}])
    with pytest.raises(DataError, match=r"data-00000-of-00001\.arrow row 0: not a readable image"):
        load(tmp_path / "bad", {"text": "text", "image": "image"})


def test_hf_disk_keeps_the_words_of_equal_images_apart(tmp_path: Path) -> None:
    rows = [{"query": "?", "image": png(0), "tokens": [word], "at": [[0.0, 0.0, 1.0, 1.0]]} for word in "aba"]
    save(tmp_path / "same", [row | {"answer": ["x"]} for row in rows])
    columns = {"question": "query", "answers": "answer", "image": "image", "words": "tokens", "boxes": "at"}
    train = load(tmp_path / "same", columns).splits["train"]
    words = [train.documents["words"][row].as_py() for row in train.examples["document"].to_pylist()]
    assert words == [["a"], ["b"], ["a"]]


@pytest.mark.parametrize(
    ("boxes", "said"),
    [
        ([[0.0, 0.0, 500.0, 1000.0]], r"word 0 \('a'\) has the box \[0, 0, 500, 1000\], .*; they look like pixels"),
        ([[0.5, 0.0, 0.1, 1.0]], r"word 0 \('a'\) has the box \[0.5, 0, 0.1, 1\], expected .* in this order"),
        ([[0.0, 0.0, float("nan"), 1.0]], r"word 0 \('a'\) has the box \[0, 0, nan, 1\], expected 4 finite numbers"),
        ([[0.0, None, 1.0, 1.0]], r"word 0 \('a'\) has the box \[0, nan, 1, 1\], expected 4 finite numbers"),
        ([], "1 words have 0 boxes"),
    ],
)
def test_hf_disk_refuses_a_box_that_is_none(boxes: list, said: str, tmp_path: Path) -> None:
    save(tmp_path / "set", [{"query": "?", "image": png(0), "tokens": ["a"], "at": boxes, "answer": ["x"]}])
    columns = {"question": "query", "answers": "answer", "image": "image", "words": "tokens", "boxes": "at"}
    with pytest.raises(DataError, match=rf"data-00000-of-00001\.arrow row 0: {said}"):
        load(tmp_path / "set", columns)


@pytest.mark.parametrize("name", ["../up", "a/b", "..", ".hidden", "a\nb", ""])
def test_hf_disk_refuses_a_split_whose_name_leads_elsewhere(name: str, tmp_path: Path) -> None:
    root = tmp_path / "set"
    save(root / "train", [{"label": 0, "image": png(1)}])
    save(tmp_path / "up", [{"label": 0, "image": png(1)}])
    (root / "dataset_dict.json").write_text(json.dumps({"splits": ["train", name]}))
    before = {path for path in tmp_path.rglob("*") if "cache" not in path.parts}
    with pytest.raises(DataError, match=r"dataset_dict\.json"):
        load(root, {"label": "label", "image": "image"})
    assert {path for path in tmp_path.rglob("*") if "cache" not in path.parts} == before


@pytest.mark.parametrize("name", ["../train/data-00000-of-00001.arrow", "/etc/passwd"])
def test_hf_disk_refuses_a_file_outside_of_its_split(name: str, tmp_path: Path) -> None:
    save(tmp_path / "set", [{"label": 0, "image": png(1)}], _data_files=[{"filename": name}])
    with pytest.raises(DataError, match=r"state\.json: .* is not the name of a file in the folder"):
        load(tmp_path / "set", {"label": "label", "image": "image"})


def test_hf_disk_refuses_two_names_of_one_split(tmp_path: Path) -> None:
    for name in ("train", "validation", "dev"):
        save(tmp_path / "set" / name, [{"label": 0, "image": png(1)}])
    (tmp_path / "set" / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "validation", "dev"]}))
    with pytest.raises(DataError, match="dev is a second split valid"):
        load(tmp_path / "set", {"label": "label", "image": "image"})


def test_hf_disk_refuses_labels_that_would_make_more_classes_than_examples(tmp_path: Path) -> None:
    for label, said in ((10**6, "1000000, above 999"), (2**40, "1099511627776 is not int32"), (-1, "-1, expected")):
        save(tmp_path / str(label), [{"label": row and label, "image": png(1)} for row in range(2)])
        with pytest.raises(DataError, match=rf"row 1.*, column 'label': {said}"):
            load(tmp_path / str(label), {"label": "label", "image": "image"})


def test_hf_disk_refuses_a_group_that_is_missing(tmp_path: Path) -> None:
    save(tmp_path / "set", [{"label": 0, "image": png(1), "who": None}, {"label": 0, "image": png(1), "who": "a"}])
    with pytest.raises(DataError, match="row 0: who is missing"):
        load(tmp_path / "set", {"label": "label", "image": "image"}, groups=("who",))
