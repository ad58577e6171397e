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
        load(asked, ASKED)
    save(tmp_path / "picked", [{"text": "a", "image": png(1)}], _indices_files=[{"filename": "indices.arrow"}])
    with pytest.raises(DataError, match="saved with a selection of rows"):
        load(tmp_path / "picked", {"text": "text", "image": "image"})
    save(tmp_path / "gone", [{"text": "a", "image": {"bytes": None, "path": "nowhere.png"}}])
    with pytest.raises(DataError, match=r"row 0: the image 'nowhere\.png' is not saved with the data"):
        load(tmp_path / "gone", {"text": "text", "image": "image"})
    save(tmp_path / "bad", [{"text": "a", "image": {"bytes": b"x", "path": None}}])
    with pytest.raises(DataError, match=r"data-00000-of-00001\.arrow row 0: not a readable image"):
        load(tmp_path / "bad", {"text": "text", "image": "image"})
