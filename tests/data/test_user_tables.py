"""Tables of the user: CSV, TSV, JSON lines, JSON and Parquet with named columns; LEAF's JSON format."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from simfl import config
from simfl.cli import main
from simfl.data.base import Dataset
from simfl.data.readers.leaf import Leaf
from simfl.data.readers.table import Table
from simfl.errors import ConfigError, DataError
from simfl.experiment import Experiment
from simfl.session.options import RunOptions
from simfl.simulation import run

REVIEWS = [{"review": f"text {k}", "stars": ["bad", "good"][k % 2], "shop": f"shop {k // 4}"} for k in range(20)]
NAMED = {"text": "review", "label": "stars"}


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Write rows in the format that the ending of the file names."""
    kind = path.suffix
    if kind in (".csv", ".tsv"):
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), delimiter="\t" if kind == ".tsv" else ",")
            writer.writeheader()
            writer.writerows(rows)
    elif kind == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif kind == ".json":
        path.write_text(json.dumps(rows))
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def png(shade: int, size: tuple[int, int] = (6, 4)) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", size, (shade, 0, 0)).save(out, "PNG")
    return out.getvalue()


def read(path: object, tmp_path: Path, **settings: Any) -> Dataset:
    return Table(path if isinstance(path, dict) else str(path), **settings).load(tmp_path / "cache")


def rows_of(dataset: Dataset, split: str = "train") -> list[dict[str, Any]]:
    return dataset.splits[split].examples.to_pylist()


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "json", "parquet"])
def test_every_format_gives_the_same_examples(kind: str, tmp_path: Path) -> None:
    dataset = read(write(tmp_path / f"a.{kind}", REVIEWS), tmp_path, columns=NAMED)
    assert {split: len(part) for split, part in dataset.splits.items()} == {"train": 14, "test": 4, "valid": 2}
    found = [row for split in dataset.splits for row in rows_of(dataset, split)]
    expected = [{"text": row["review"], "label": row["stars"], "shop": row["shop"]} for row in REVIEWS]
    assert sorted(found, key=lambda row: row["text"]) == sorted(expected, key=lambda row: row["text"])
    assert dataset.card["classes"] == ["bad", "good"]


def test_splits_come_from_a_column_a_folder_or_a_mapping(tmp_path: Path) -> None:
    rows = [row | {"part": ["train", "dev", "testing"][k % 3]} for k, row in enumerate(REVIEWS)]
    dataset = read(write(tmp_path / "a.csv", rows), tmp_path, columns={**NAMED, "split": "part"})
    assert {split: len(part) for split, part in dataset.splits.items()} == {"train": 7, "test": 6, "valid": 7}
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in ("train", "validation"):
        write(folder / f"{name}.csv", REVIEWS)
    assert set(read(folder, tmp_path, columns=NAMED).splits) == {"train", "valid"}
    files = {"train": str(folder / "train.csv"), "unseen": str(folder / "validation.csv")}
    assert set(read(files, tmp_path, columns=NAMED).splits) == {"train", "unseen"}


def test_numbers_of_several_columns_are_the_features(tmp_path: Path) -> None:
    rows = [{"age": k, "height": k / 2, "ill": k % 2, "hospital": f"h{k % 3}"} for k in range(12)]
    settings = {"features": ("height", "age"), "columns": {"label": "ill"}}
    dataset = read({"train": str(write(tmp_path / "a.csv", rows))}, tmp_path, **settings)
    assert rows_of(dataset)[3] == {"hospital": "h0", "label": 1, "features": [1.5, 3.0]}
    assert dataset.card["shape"] == [2]


def test_text_stays_text_where_it_looks_like_a_number(tmp_path: Path) -> None:
    rows = [
        {"id": "007", "text": "12", "label": "NA", "client": "3"},
        {"id": "08", "text": "", "label": "b", "client": "4"},
    ]
    dataset = read({"train": str(write(tmp_path / "a.csv", rows))}, tmp_path)
    assert [(row["id"], row["text"], row["label"]) for row in rows_of(dataset)] == [
        ("007", "12", "NA"),
        ("08", "", "b"),
    ]


def test_images_lie_next_to_the_table_or_inside_it(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    for k in range(4):
        (tmp_path / "images" / f"{k}.png").write_bytes(png(k * 50))
    listed = [{"file_name": f"images/{k}.png", "label": k % 2} for k in range(4)]
    files = {"train": str(write(tmp_path / "metadata.csv", listed))}
    dataset = read(files, tmp_path, columns={"image": "file_name"})
    assert rows_of(dataset)[1]["image"] == png(50)
    assert dataset.card["shape"] == [3, 4, 6]
    resized = read(files, tmp_path, columns={"image": "file_name"}, image_size=8)
    assert resized.card["shape"] == [3, 8, 8]
    stored = [{"image": {"bytes": png(k * 50), "path": None}, "label": k % 2} for k in range(4)]
    inside = read({"train": str(write(tmp_path / "b.parquet", stored))}, tmp_path)
    assert rows_of(inside)[1]["image"] == png(50)


def test_names_of_classes_in_a_parquet_file_of_datasets_are_taken(tmp_path: Path) -> None:
    features = {"info": {"features": {"label": {"names": ["cat", "dog", "owl"], "_type": "ClassLabel"}}}}
    table = pa.table({"text": ["a", "b"], "label": [0, 1]})
    pq.write_table(table.replace_schema_metadata({"huggingface": json.dumps(features)}), tmp_path / "train.parquet")
    dataset = read({"train": str(tmp_path / "train.parquet")}, tmp_path)
    assert dataset.card["classes"] == ["cat", "dog", "owl"]


@pytest.mark.parametrize("boxes", ["shares", "thousandths", "pixels"])
def test_documents_with_boxes_in_any_unit(boxes: str, tmp_path: Path) -> None:
    given = {"shares": [0.1, 0.2, 0.3, 0.4], "thousandths": [100, 200, 300, 400], "pixels": [30, 80, 90, 160]}[boxes]
    row = {"question": "total?", "answers": ["7"], "words": ["7"], "boxes": [given], "width": 300, "height": 400}
    (tmp_path / "a.json").write_text(json.dumps({"version": 1, "data": [row]}))
    dataset = read({"train": str(tmp_path / "a.json")}, tmp_path, boxes=boxes)
    (page,) = dataset.splits["train"].documents.to_pylist()
    assert page["boxes"] == pytest.approx([0.1, 0.2, 0.3, 0.4])
    assert rows_of(dataset)[0]["answers"] == ["7"]


WRONG: dict[str, tuple[list[dict[str, Any]], dict[str, Any], str]] = {
    "no input": (REVIEWS, {}, r"a\.csv has the columns review, stars, shop; none is text, image, .* name one"),
    "unknown role": (REVIEWS, {"columns": {"txt": "review"}}, r"data\.columns: unknown 'txt'; did you mean 'text'"),
    "unknown column": (REVIEWS, {"columns": {"text": "revew"}}, r"data\.columns\.text: .* no column 'revew'; did you"),
    "unknown feature": (REVIEWS, {"features": ("age",)}, r"data\.features: .* has no column 'age'"),
    "text as feature": (REVIEWS, {"features": ("stars",)}, r"row 0: column 'stars' is 'bad', expected a number"),
    "shares": (REVIEWS, {"columns": NAMED, "valid": 0.5, "test": 0.5}, r"their sum must be below 1"),
    "no train": (REVIEWS, {"columns": {**NAMED, "split": "shop"}}, r"there is no split train|is not"),
    "missing image": ([{"image": "a.png", "label": 0}], {}, r"row 0: the image .*a\.png is missing"),
    "delimiter": ([{"a;b": "1;2"}], {}, r"one column, 'a;b'; give data\.delimiter: ';'"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_tables_are_refused_in_one_line(name: str, tmp_path: Path) -> None:
    rows, settings, message = WRONG[name]
    write(tmp_path / "a.csv", rows)
    with pytest.raises((ConfigError, DataError), match=message) as caught:
        read(tmp_path / "a.csv", tmp_path, **settings)
    assert "\n" not in str(caught.value)


def test_other_files_are_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "a.xlsx").write_bytes(b"")
    (tmp_path / "a.csv").write_text('text,label\n"a,1\n')
    (tmp_path / "b.json").write_text('{"a": [1], "b": 2}')
    (tmp_path / "empty").mkdir()
    for path, message in (("a.xlsx", "unknown ending"), ("b.json", "its fields: a, b"), ("empty", "has no file of")):
        with pytest.raises(DataError, match=message):
            read(tmp_path / path, tmp_path)
    with pytest.raises(DataError):
        read(tmp_path / "a.csv", tmp_path)


def test_a_table_trains_from_an_experiment_file(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    points = rng.normal(size=(60, 2)).round(4).tolist()
    rows = [
        {"u": u, "v": v, "side": "left" if u < 0 else "right", "site": f"s{k % 3}"} for k, (u, v) in enumerate(points)
    ]
    write(tmp_path / "a.csv", rows)
    text = f"""
name: table
data: {{name: table, path: {tmp_path / "a.csv"}, features: [u, v], columns: {{label: side}}}}
partition: {{by: natural, column: site}}
model: {{name: mlp, hidden_sizes: [8]}}
phases:
  - objective: classification
    rounds: 8
    clients_per_round: 3
    local: {{steps: 6, batch_size: 8, optimizer: adamw, learning_rate: 0.05}}
evaluate: {{splits: [valid]}}
"""
    (tmp_path / "e.yaml").write_text(text)
    experiment: Experiment = config.load(tmp_path / "e.yaml")
    summary = run(experiment, RunOptions(tmp_path / "run", backend="inline"))
    assert summary["clients"] == 3
    assert summary["final"]["accuracy"] > 0.8


def test_leaf_users_have_their_own_examples(tmp_path: Path) -> None:
    users = {f"u{k}": {"x": [[0.0] * 4, [1.0] * 4], "y": [0, 1]} for k in range(3)}
    for split in ("train", "test"):
        (tmp_path / split).mkdir()
        content = {"users": list(users), "num_samples": [2] * 3, "user_data": users}
        (tmp_path / split / "all.json").write_text(json.dumps(content))
    dataset = Leaf(str(tmp_path), shape=(2, 2)).load(tmp_path / "cache")
    assert [row["user"] for row in rows_of(dataset)] == ["u0", "u0", "u1", "u1", "u2", "u2"]
    assert dataset.card["shape"] == [2, 2]
    assert dataset.card["users"] == {"train": 3, "test": 3}
    with pytest.raises(DataError, match=r"x has 4 values, data\.shape has 9"):
        Leaf(str(tmp_path), shape=(3, 3)).load(tmp_path / "cache")
    users["u1"]["y"] = [0]
    (tmp_path / "train" / "all.json").write_text(json.dumps({"users": list(users), "user_data": users}))
    with pytest.raises(DataError, match="user 'u1' has 2 inputs and 1 labels"):
        Leaf(str(tmp_path)).load(tmp_path / "cache")
    with pytest.raises(DataError, match="give the folder that contains train and test"):
        Leaf(str(tmp_path / "train")).load(tmp_path / "cache")


def test_texts_that_two_splits_share_are_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [row | {"split": "test" if k == 19 else "train"} for k, row in enumerate(REVIEWS)]
    path = write(tmp_path / "a.csv", rows)
    arguments = ["data", "check", str(path), "--as", "table", "--set", "columns={text: review, label: stars}"]
    assert main(arguments) == 0
    assert "equal texts" not in capsys.readouterr().out
    write(path, [*rows, REVIEWS[0] | {"split": "test"}])
    main(arguments)
    assert "! test 1 equal texts also in train 1" in " ".join(capsys.readouterr().out.split())


def test_questions_about_one_document_stay_in_one_split(tmp_path: Path) -> None:
    (tmp_path / "0.png").write_bytes(png(0))
    page = {"words": ["7"], "boxes": [[0.1, 0.2, 0.3, 0.4]], "answers": ["7"]}
    rows = [{"document": f"d{k % 10}", "question": f"q{k}?", **page} for k in range(60)]
    dataset = read(write(tmp_path / "a.jsonl", rows), tmp_path)
    of_split = {split: set(part.documents["id"].to_pylist()) for split, part in dataset.splits.items()}
    assert {split: len(ids) for split, ids in of_split.items()} == {"train": 7, "test": 2, "valid": 1}
    assert not of_split["train"] & of_split["test"]


def test_one_column_may_have_two_roles(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", REVIEWS)
    dataset = read({"train": str(path)}, tmp_path, columns={**NAMED, "group": "stars"})
    assert rows_of(dataset)[1] == {"shop": "shop 0", "text": "text 1", "label": "good", "group": "good"}
