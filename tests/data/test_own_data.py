"""Data of one's own: what is read, under which names and shapes, how it is kept for workers, and what is refused."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import TensorDataset

from simfl.config.fields import read, written
from simfl.data.base import Data, Dataset
from simfl.data.readers.own import Own
from simfl.errors import ConfigError, DataError
from simfl.objectives.classification import Classification

X = np.arange(24, dtype=np.float32).reshape(4, 2, 3)
Y = np.array([0, 2, 1, 2])


def rows(scale: float = 1.0) -> list[dict[str, Any]]:
    return [
        {"x": x * scale, "y": y, "client": i % 2, "place": f"p{i}"} for i, (x, y) in enumerate(zip(X, Y, strict=True))
    ]


def encoded(dataset: Dataset, split: str = "train") -> tuple[np.ndarray, list[int]]:
    examples = Classification().encode(dataset.splits[split], None)
    return examples.rows["x"].numpy(), examples.rows["label"].tolist()


@pytest.mark.parametrize(
    "items",
    [
        (X, Y),
        (torch.tensor(X), torch.tensor(Y)),
        TensorDataset(torch.tensor(X), torch.tensor(Y)),
        list(zip(X, Y, strict=True)),
        [(x.tolist(), int(y)) for x, y in zip(X, Y, strict=True)],
        [{"x": x, "label": y} for x, y in zip(X, Y, strict=True)],
        {"train": (X, Y)},
        {"train": {"features": X, "label": Y}},
    ],
    ids=lambda items: type(items).__name__,
)
def test_arrays_pairs_and_mappings_are_the_same_data(items: Any, tmp_path: Path) -> None:
    dataset = Own(items).load(tmp_path)
    x, label = encoded(dataset)
    assert x.tolist() == X.reshape(4, 6).tolist()
    assert label == [0, 2, 1, 2]
    assert dataset.card == {"examples": {"train": 4}, "shape": [2, 3], "num_classes": 3}
    assert dataset.sha256 == Own((X, Y)).load(tmp_path).sha256


def test_further_keys_are_columns_to_partition_and_group_by(tmp_path: Path) -> None:
    table = Own(rows()).load(tmp_path).splits["train"].examples
    assert table.column_names == ["features", "label", "client", "place"]
    assert table["place"].to_pylist() == ["p0", "p1", "p2", "p3"]
    assert table["client"].to_pylist() == [0, 1, 0, 1]


def test_bytes_are_scaled_and_pictures_are_kept_as_pictures(tmp_path: Path) -> None:
    x, _ = encoded(Own((np.full((4, 2, 2), 255, np.uint8), Y)).load(tmp_path))
    assert x.tolist() == np.ones((4, 4)).tolist()
    pictures = [(Image.new("L", (3, 2), 51 * i), y) for i, y in enumerate(Y)]
    table = Own(pictures).load(tmp_path).splits["train"]
    seen = Classification(grey=True).encode(table, None).rows["x"]
    assert seen.shape == (4, 1, 2, 3)
    assert seen[3].unique().tolist() == [153]


def test_text_lists_and_missing_values_are_columns(tmp_path: Path) -> None:
    items = [
        {"text": "a b", "words": ["a", "b"], "score": 0.5, "y": 1},
        {"text": "c", "words": ["c"], "score": None, "y": 0},
    ]
    table = Own(items).load(tmp_path).splits["train"].examples
    assert table["words"].to_pylist() == [["a", "b"], ["c"]]
    assert table["score"].to_pylist() == [0.5, None]


def test_labels_that_are_no_classes_make_none(tmp_path: Path) -> None:
    assert "num_classes" not in Own((X, Y / 2)).load(tmp_path).card


def test_a_function_is_called_with_its_settings(tmp_path: Path) -> None:
    for of in (rows, f"{__name__}:rows"):
        twice = Own(of, {"scale": 2.0}).load(tmp_path)
        assert encoded(twice)[0].tolist() == (2 * X).reshape(4, 6).tolist()
    with pytest.raises(ConfigError, match=rf"^data.settings: {__name__}:rows: got an unexpected"):
        Own(rows, {"size": 2}).load(tmp_path)


def test_workers_get_the_place_of_the_data_and_not_the_data(tmp_path: Path) -> None:
    big = Own((np.zeros((1000, 50), np.float32), np.arange(1000) % 3))
    first = big.load(tmp_path)
    sent = pickle.dumps(big)
    assert len(sent) < 1000
    assert pickle.loads(sent).load(tmp_path).sha256 == first.sha256
    with pytest.raises(DataError, match=r"is gone, where <.*> was kept; give it again from Python"):
        pickle.loads(sent).load(tmp_path / "elsewhere")


def test_what_can_be_imported_is_made_again_where_the_cache_lacks_it(tmp_path: Path) -> None:
    own = Own(rows)
    first = own.load(tmp_path)
    assert pickle.loads(pickle.dumps(own)).load(tmp_path / "elsewhere").sha256 == first.sha256


def test_data_given_from_python_are_written_by_their_hash_and_found_again(tmp_path: Path) -> None:
    own = Own((X, Y))
    sha256 = own.load(tmp_path).sha256
    plain = written(own)
    assert plain == {"name": "own", "of": "<builtins:tuple>", "settings": {}, "sha256": sha256}
    assert read(Data, plain, "data").load(tmp_path).sha256 == sha256
    assert written(read(Data, plain, "data")) == plain
    assert written(Own(rows)) == {"name": "own", "of": f"{__name__}:rows", "settings": {}, "sha256": None}


def test_what_is_no_component_stands_for_data() -> None:
    splits = {"train": [(1, 2)], "valid": [(1, 2)]}
    assert read(Data, splits, "data") == Own(splits)
    assert read(Data, rows, "data") == Own(rows)
    with pytest.raises(ConfigError, match=r"^data.name: null is not a name"):
        read(Data, {"nam": "digits"}, "data")


@pytest.mark.parametrize(
    ("items", "said"),
    [
        ([], "data, split train: there are no examples"),
        ([1, 2], "data, split train, item 0: int is neither (x, y) nor a mapping"),
        ([(1, 2, 3)], "data, split train, item 0: tuple is neither (x, y) nor a mapping"),
        ([{"x": [1.0]}, {"y": 1}], "data, split train, item 1: it has y, the first has x"),
        ([([1.0], 0), ([1.0, 2.0], 0)], "data, split train, item 1: features has shape (2,), the first has (1,)"),
        ([(["a"], 0)], "data, split train: column 'features' holds <U1, numbers are needed"),
        ([{"y": 1, "z": "a"}, {"y": 1, "z": 1}], "data, split train: column 'z': "),
        ({"train": iter([])}, "data, split train: list_iterator has no length or no items by number"),
        ({"train": (X, Y), "valid": (X[:, :1], Y)}, "data: the splits have examples of other shapes: (2, 3), (1, 3)"),
    ],
)
def test_what_cannot_be_read_is_one_line(items: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(DataError) as error:
        Own(items).load(tmp_path)
    assert str(error.value).startswith(said)
