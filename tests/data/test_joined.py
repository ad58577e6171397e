"""Several data sets as one."""

from dataclasses import dataclass

import pyarrow as pa
import pytest
from sample_files import write_image, write_json, write_lines

from simfl.config.fields import read, written
from simfl.data.base import Data, Dataset, Split
from simfl.data.partition.by_data_set import DataSets
from simfl.data.readers.aqua import Aqua
from simfl.data.readers.joined import Joined
from simfl.data.readers.nlvr2 import Nlvr2
from simfl.errors import ConfigError, DataError


@dataclass(frozen=True)
class Pages(Data):
    name: str
    count: int
    column: str = "image"

    def load(self, cache):
        examples = pa.table(
            {"id": [f"{i}" for i in range(self.count)], "document": pa.array(range(self.count), pa.int32())}
        )
        documents = pa.table({"id": [f"{self.name}{i}" for i in range(self.count)], self.column: ["x"] * self.count})
        return Dataset(self.name, {"train": Split(examples, documents)}, self.name, {"count": self.count})


@dataclass(frozen=True)
class Labels(Data):
    def load(self, cache):
        return Dataset(
            "labels", {"train": Split(pa.table({"label": [1]})), "test": Split(pa.table({"label": [2]}))}, "l", {}
        )


def test_joined_shifts_documents_and_labels_examples_with_their_part(tmp_path):
    data = Joined({"a": Pages("a", 2), "b": Pages("b", 3)}).load(tmp_path)
    examples, documents = data.splits["train"].examples, data.splits["train"].documents
    assert examples["dataset"].to_pylist() == ["a", "a", "b", "b", "b"]
    assert examples["id"].to_pylist() == ["a/0", "a/1", "b/0", "b/1", "b/2"]
    assert examples["document"].to_pylist() == [0, 1, 2, 3, 4]
    assert documents["id"].to_pylist() == ["a0", "a1", "b0", "b1", "b2"]
    assert data.card["parts"]["b"] == {"count": 3}
    partition = DataSets(clients=2).split(data.splits["train"], seed=0)
    assert partition.sizes.tolist() == [2, 3]


def test_joined_hash_covers_parts_and_their_names(tmp_path):
    hashes = {
        Joined(parts).load(tmp_path).sha256
        for parts in ({"a": Pages("a", 2)}, {"b": Pages("a", 2)}, {"a": Pages("a", 2), "b": Pages("b", 1)})
    }
    assert len(hashes) == 3


def test_joined_has_every_split_of_any_part(tmp_path):
    data = Joined({"a": Labels(), "b": Labels()}).load(tmp_path)
    assert data.splits["test"].examples.to_pylist() == [{"label": 2, "dataset": "a"}, {"label": 2, "dataset": "b"}]


def test_joined_renames_splits_of_a_part(tmp_path):
    parts = {"a": Labels(), "b": Labels()}
    data = Joined(parts, {"b": {"test": "abroad"}}).load(tmp_path)
    assert {name: split.examples["dataset"].to_pylist() for name, split in data.splits.items()} == {
        "train": ["a", "b"],
        "test": ["a"],
        "abroad": ["b"],
    }
    assert data.sha256 != Joined(parts).load(tmp_path).sha256


@pytest.mark.parametrize(
    ("splits", "line"),
    [
        ({"c": {"test": "x"}}, "data.splits: unknown part 'c'"),
        ({"b": {"tset": "x"}}, "data.splits.b: unknown split 'tset'; did you mean 'test'"),
        ({"b": {"test": "train"}}, "gives two splits one name"),
    ],
)
def test_joined_refuses_invalid_split_names(tmp_path, splits, line):
    with pytest.raises(ConfigError, match=line):
        Joined({"a": Labels(), "b": Labels()}, splits).load(tmp_path)


def test_joined_fills_missing_columns_with_null(tmp_path):
    question = {"question": "?", "answer": "x", "need_external_knowledge": False}
    for name in ("train", "val", "test"):
        write_json(tmp_path / "aqua" / f"{name}.json", [question | {"image": "a.jpg"}])
        pair = {"sentence": "s", "label": "True", "identifier": f"{name}-0-0-0"}
        write_lines(
            tmp_path / "nlvr2" / f"{name if name == 'train' else {'val': 'dev', 'test': 'test1'}[name]}.json", [pair]
        )
        for side in (0, 1):
            write_image(tmp_path / "nlvr2" / "images" / f"{name}-0-0-img{side}.png")
    write_image(tmp_path / "aqua" / "images" / "a.jpg")
    parts = {"art": Aqua(str(tmp_path / "aqua"), image_size=0), "nlvr2": Nlvr2(str(tmp_path / "nlvr2"), image_size=0)}
    train = Joined(parts).load(tmp_path / "cache").splits["train"]
    rows = train.examples.to_pylist()
    assert [(r["dataset"], r["document"], r["second"], r["counts"]) for r in rows] == [
        ("art", 0, None, [1]),
        ("nlvr2", 1, 1, None),
    ]
    assert train.documents.num_rows == 3


def test_joined_refuses_incompatible_parts(tmp_path):
    with pytest.raises(DataError, match="some have documents and some do not"):
        Joined({"a": Labels(), "b": Pages("b", 1)}).load(tmp_path)
    with pytest.raises(DataError, match="give all the same image_size"):
        Joined({"a": Pages("a", 1), "b": Pages("b", 1, "image_path")}).load(tmp_path)
    with pytest.raises(ConfigError, match="at least one data set"):
        Joined({}).load(tmp_path)


def test_joined_parts_are_read_from_an_experiment_file(tmp_path):
    for name in ("wtq", "docvqa"):
        write_lines(
            tmp_path / name / "train" / "document.jsonl",
            [{"name": "p", "annotations": [{"key": "?", "values": [{"value": "x"}]}]}],
        )
        blank = {"tool_name": "t", "tokens_layer": {"tokens": [" "], "positions": [[0, 0, 0, 0]]}}
        write_lines(tmp_path / name / "train" / "documents_content.jsonl", [{"name": "p", "contents": [blank]}])
        write_image(tmp_path / name / "png" / "p" / "0.png")
    given = {
        "name": "joined",
        "parts": {n: {"name": "due", "path": str(tmp_path / n), "image_size": 8} for n in ("wtq", "docvqa")},
    }
    data = read(Data, given, "data")
    assert read(Data, written(data), "data") == data
    assert data.load(tmp_path / "cache").splits["train"].examples["dataset"].to_pylist() == ["wtq", "docvqa"]
    with pytest.raises(ConfigError, match=r"data\.parts\.wtq: unknown 'duo'"):
        read(Data, {"name": "joined", "parts": {"wtq": "duo"}}, "data")
