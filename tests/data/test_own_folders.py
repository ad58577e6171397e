"""Folders of the user: images with metadata, saved `datasets`, shards and splits; nested JSON; `simfl data check`."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from simfl.cli import main
from simfl.data.base import Dataset
from simfl.data.check import check_dataset
from simfl.data.io.nested import with_nested
from simfl.data.io.roles import suggested_columns
from simfl.data.readers.detect import detect_reader
from simfl.data.readers.hf_disk import HfDisk
from simfl.data.readers.image_folder import ImageFolder
from simfl.data.readers.own import Own
from simfl.data.readers.table import Table
from simfl.errors import ConfigError, DataError

CLASSES = ("cat", "dog")


def png(shade: int) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (4, 4), (shade, 0, 0)).save(out, "PNG")
    return out.getvalue()


def image_folder(top: Path, columns: str = "user_id", per_class: int = 10) -> Path:
    """Write images in folders of their classes, and a metadata file with a column of users."""
    lines = [f"file_name,{columns}"]
    for label, name in enumerate(CLASSES):
        (top / name).mkdir(parents=True)
        for k in range(per_class):
            (top / name / f"{k}.png").write_bytes(png(10 * k + label))
            lines.append(f"{name}/{k}.png,u{k % 3}")
    (top / "metadata.csv").write_text("\n".join(lines) + "\n")
    return top


def save_to_disk(folder: Path, rows: list[dict[str, Any]], names: tuple[str, ...] = ()) -> Path:
    """Write the files that `save_to_disk` of `datasets` writes for one split."""
    folder.mkdir(parents=True)
    table = pa.Table.from_pylist(rows)
    with pa.ipc.new_stream(str(folder / "data-00000-of-00001.arrow"), table.schema) as writer:
        writer.write_table(table)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}))
    features = {"label": {"names": list(names), "_type": "ClassLabel"}} if names else {}
    (folder / "dataset_info.json").write_text(json.dumps({"features": features}))
    return folder


def rows_of(dataset: Dataset, split: str = "train") -> list[dict[str, Any]]:
    return dataset.splits[split].examples.to_pylist()


@pytest.mark.parametrize("reader", [Table, ImageFolder])
def test_metadata_gives_images_their_columns_and_folders_their_class(reader: type, tmp_path: Path) -> None:
    top = image_folder(tmp_path / "images")
    dataset = reader(str(top)).load(tmp_path / "cache")
    assert {split: len(part) for split, part in dataset.splits.items()} == {"train": 14, "test": 4, "valid": 2}
    assert dataset.card["classes"] == list(CLASSES)
    assert {row["user_id"] for row in rows_of(dataset)} == {"u0", "u1", "u2"}
    assert "noted" not in dataset.card
    (top / "cat" / "new.png").write_bytes(png(1))
    assert reader(str(top)).preview(tmp_path / "x").card["noted"] == {"images that metadata does not list": 1}


def test_metadata_of_splits_and_a_label_column(tmp_path: Path) -> None:
    for split in ("train", "validation"):
        image_folder(tmp_path / "images" / split, columns="label")
    dataset = Table(str(tmp_path / "images")).load(tmp_path / "cache")
    assert set(dataset.splits) == {"train", "valid"}
    assert dataset.card["classes"] == ["u0", "u1", "u2"]  # the column, not the folder
    with pytest.raises(ConfigError, match=r"data\.layout: 'domain/class' given, but .*metadata\.csv describes"):
        ImageFolder(str(tmp_path / "images" / "train"), layout="domain/class").load(tmp_path / "cache")


@pytest.mark.parametrize("reader", [Table, HfDisk])
def test_saved_datasets_need_no_columns(reader: type, tmp_path: Path) -> None:
    rows = [{"image": {"bytes": png(k), "path": None}, "label": k % 2, "user": k % 3} for k in range(6)]
    save_to_disk(tmp_path / "saved" / "train", rows, CLASSES)
    save_to_disk(tmp_path / "saved" / "validation", rows[:2], CLASSES)
    (tmp_path / "saved" / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "validation"]}))
    dataset = reader(str(tmp_path / "saved")).load(tmp_path / "cache")
    assert set(dataset.splits) == {"train", "valid"}
    assert dataset.card["classes"] == list(CLASSES)
    assert [str(row["user"]) for row in rows_of(dataset)] == ["0", "1", "2", "0", "1", "2"]


@pytest.mark.parametrize("reader", [Table, HfDisk])
def test_labels_of_saved_datasets_may_be_text(reader: type, tmp_path: Path) -> None:
    rows = [{"text": f"t{k}", "label": ["no", "yes"][k % 2]} for k in range(4)]
    dataset = reader(str(save_to_disk(tmp_path / "saved", rows))).load(tmp_path / "cache")
    assert dataset.card["classes"] == ["no", "yes"]
    columns = {"text": "text", "label": "label"}
    save_to_disk(tmp_path / "other" / "train", rows)
    save_to_disk(tmp_path / "other" / "test", [{"text": "t", "label": "maybe"}])
    (tmp_path / "other" / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "test"]}))
    if reader is HfDisk:
        with pytest.raises(DataError, match=r"row 0: label is 'maybe', which no label of train is; allowed: no, yes"):
            HfDisk(str(tmp_path / "other"), columns).load(tmp_path / "cache")


class Features(dict[str, Any]):
    """Stands for `datasets.Features`."""


class Saved(list[dict[str, Any]]):
    """Items with the features that a data set of the library `datasets` has."""

    features = Features(label=type("ClassLabel", (), {"names": list(CLASSES)}))


def test_splits_and_class_names_of_a_dataset_dict_are_taken(tmp_path: Path) -> None:
    items = Saved({"image": Image.new("RGB", (4, 4)), "label": 0, "client": c} for c in (3, "b", None))
    dataset = Own({"train": items, "validation": items}).read()
    assert set(dataset.splits) == {"train", "valid"}
    assert dataset.card["classes"] == list(CLASSES)
    assert dataset.splits["train"].examples["client"].to_pylist() == ["3", "b", None]
    with pytest.raises(DataError, match="'valid' is a second split 'valid'"):
        Own({"train": items, "validation": items, "valid": items}).read()


def test_shards_and_folders_of_splits_are_one_split(tmp_path: Path) -> None:
    table = pa.table({"text": ["a", "b"], "label": [0, 1]})
    (tmp_path / "data").mkdir()
    for k in range(2):
        pq.write_table(table, tmp_path / "data" / f"train-0000{k}-of-00002.parquet")
    (tmp_path / "data" / "test").mkdir()
    pq.write_table(table, tmp_path / "data" / "test" / "any.parquet")
    dataset = Table(str(tmp_path)).load(tmp_path / "cache")
    assert {split: len(part) for split, part in dataset.splits.items()} == {"train": 4, "test": 2}
    pq.write_table(table.rename_columns(["text", "labels"]), tmp_path / "data" / "train-00002-of-00002.parquet")
    with pytest.raises(DataError, match=r"its columns are text, labels, those of .* text, label"):
        Table(str(tmp_path)).load(tmp_path / "cache")


PAGES = [
    {
        "name": f"d{k}", "words": ["total", "7"], "boxes": [[10, 10, 20, 20], [30, 10, 40, 20]], "width": 100,
        "height": 50, "qas": [{"q": f"q{n}?", "a": {"text": ["7"]}} for n in range(1 + k % 2)],
    }
    for k in range(4)
]  # fmt: skip


def test_questions_of_nested_json_share_their_page(tmp_path: Path) -> None:
    (tmp_path / "docs.json").write_text(json.dumps(PAGES))
    named = {"question": "qas.q", "answers": "qas.a.text"}
    dataset = Table({"train": str(tmp_path / "docs.json")}, named, boxes="pixels").load(tmp_path / "cache")
    assert [(row["question"], row["answers"], row["document"]) for row in rows_of(dataset)] == [
        ("q0?", ["7"], 0), ("q0?", ["7"], 1), ("q1?", ["7"], 1), ("q0?", ["7"], 2), ("q0?", ["7"], 3),
        ("q1?", ["7"], 3),
    ]  # fmt: skip
    assert dataset.splits["train"].documents["boxes"][0].as_py() == pytest.approx(
        [0.1, 0.2, 0.2, 0.4, 0.3, 0.2, 0.4, 0.4]
    )
    with pytest.raises(ConfigError, match=r"'qas' has no field 'quest'; .*q"):
        Table({"train": str(tmp_path / "docs.json")}, {"question": "qas.quest"}).preview(tmp_path)


def test_one_list_alone_can_give_rows() -> None:
    columns: dict[str, list[Any]] = {"a": [[{"x": 1}, {"x": 2}], None], "b": [[{"y": 1}], []]}
    assert with_nested(columns, ["a.x"], "f")[0] == {"a.x": [1, 2], "b": [[{"y": 1}]] * 2}
    with pytest.raises(ConfigError, match="'a' and 'b' are lists; only one of them can give rows"):
        with_nested(columns, ["a.x", "b.y"], "f")


def test_columns_with_usual_names_are_suggested() -> None:
    assert suggested_columns({"review": ["long text"], "stars": [1]}) == {"text": "review", "label": "stars"}
    assert suggested_columns({"x1": ["a long one", "b long"], "kind": ["p", "q"]}) == {"text": "x1", "label": "kind"}
    listed = {"path": ["0.png"], "label": ["a"], "split": ["train"], "domain": ["d"]}
    assert suggested_columns(listed) == {"image": "path"}
    assert suggested_columns({"words_said": ["a b", "c"], "label": [0, 1]}) == {"text": "words_said"}
    pages = {name: [page[name] for page in PAGES] for name in PAGES[0]}
    assert suggested_columns(pages) == {"question": "qas.q", "answers": "qas.a"}


def test_formats_are_recognised(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text\na\n")
    image_folder(tmp_path / "described")
    save_to_disk(tmp_path / "saved", [{"text": "a"}])
    (tmp_path / "leaf" / "train").mkdir(parents=True)
    (tmp_path / "leaf" / "train" / "all.json").write_text('{"users": []}')
    (tmp_path / "plain" / "train" / "cat").mkdir(parents=True)
    (tmp_path / "plain" / "train" / "cat" / "0.png").write_bytes(png(0))
    (tmp_path / "empty").mkdir()
    names = {name: detect_reader(tmp_path / name) for name in ("a.csv", "described", "saved", "leaf", "plain")}
    assert {name: found["name"] for name, found in names.items()} == {
        "a.csv": "table", "described": "table", "saved": "hf_disk", "leaf": "leaf", "plain": "image_folder",
    }  # fmt: skip
    assert names["plain"]["layout"] == "split/class"
    with pytest.raises(DataError, match=r"no tables .*, no images in folders, no saved data set; give --as FORMAT"):
        detect_reader(tmp_path / "empty")
    with pytest.raises(DataError, match=r"no images in folders class; its folders look like layout: split/class"):
        ImageFolder(str(tmp_path / "plain")).load(tmp_path / "cache")


def test_a_check_says_what_is_read_and_kept_and_how_to_name_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "reviews.csv"
    path.write_text("review,stars,shop\n" + "".join(f"text {k},{k % 2},s{k % 3}\n" for k in range(10)))
    assert main(["data", "check", str(path)]) == 2
    assert "name one, such as columns: {text: review, label: stars}" in capsys.readouterr().err
    named = "columns={text: review, label: stars}"
    assert main(["data", "check", str(path), "--set", named]) == 0
    shown = capsys.readouterr().out
    assert "read     text (review), label (stars)" in shown
    assert "kept     shop; one client for each value: partition: {by: natural, column: shop}" in shown
    assert f"{{name: table, path: {path}, columns: {{text: review, label: stars}}}}" in shown
    assert main(["data", "check", str(path), "--set", named, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["schema"], found["passed"]) == ("simfl/data-check/1", True)
    assert found["columns"]["kept"] == ["shop"]
    report = check_dataset(Table(str(path), {"text": "review"}).preview(tmp_path))
    assert report.columns.suggested == {"label": "stars"}
