"""Data sets of the user: accepted types, columns and shapes, caching for workers, and errors."""

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
def test_own_data_accept_arrays_pairs_and_mappings(items: Any, tmp_path: Path) -> None:
    dataset = Own(items).load(tmp_path)
    x, label = encoded(dataset)
    assert x.tolist() == X.reshape(4, 6).tolist()
    assert label == [0, 2, 1, 2]
    assert dataset.card == {"examples": {"train": 4}, "shape": [2, 3], "num_classes": 3, "classes_from_train": True}
    assert dataset.sha256 == Own((X, Y)).load(tmp_path).sha256


@pytest.mark.parametrize("labels", [[1, 0, 0, 1], ["b", "a", "a", "b"], (1.0, 0.0, 0.0, 1.0)])
def test_labels_of_an_array_can_be_a_list(labels: Any, tmp_path: Path) -> None:
    assert encoded(Own({"train": (X, labels)}).load(tmp_path))[1] == [1, 0, 0, 1]


def test_own_data_keep_further_keys_as_columns(tmp_path: Path) -> None:
    table = Own(rows()).load(tmp_path).splits["train"].examples
    assert table.column_names == ["features", "label", "client", "place"]
    assert table["place"].to_pylist() == ["p0", "p1", "p2", "p3"]
    assert table["client"].to_pylist() == [0, 1, 0, 1]


def test_own_data_scale_uint8_and_store_images_encoded(tmp_path: Path) -> None:
    x, _ = encoded(Own((np.full((4, 2, 2), 255, np.uint8), Y)).load(tmp_path))
    assert x.tolist() == np.ones((4, 4)).tolist()
    images = [(Image.new("L", (3, 2), 51 * i), y) for i, y in enumerate(Y)]
    table = Own(images).load(tmp_path).splits["train"]
    seen = Classification(grey=True).encode(table, None).rows["x"]
    assert seen.shape == (4, 1, 2, 3)
    assert seen[3].unique().tolist() == [153]


def test_own_data_keep_text_lists_and_nulls(tmp_path: Path) -> None:
    items = [
        {"text": "a b", "words": ["a", "b"], "score": 0.5, "y": 1},
        {"text": "c", "words": ["c"], "score": None, "y": 0},
    ]
    table = Own(items).load(tmp_path).splits["train"].examples
    assert table["words"].to_pylist() == [["a", "b"], ["c"]]
    assert table["score"].to_pylist() == [0.5, None]


def test_own_data_with_float_labels_have_no_classes(tmp_path: Path) -> None:
    assert "num_classes" not in Own((X, Y / 2)).load(tmp_path).card


def test_own_data_function_is_called_with_its_settings(tmp_path: Path) -> None:
    for of in (rows, f"{__name__}:rows"):
        twice = Own(of, {"scale": 2.0}).load(tmp_path)
        assert encoded(twice)[0].tolist() == (2 * X).reshape(4, 6).tolist()
    with pytest.raises(ConfigError, match=rf"^data.settings: {__name__}:rows: got an unexpected"):
        Own(rows, {"size": 2}).load(tmp_path)


def test_own_data_are_pickled_as_a_cache_reference(tmp_path: Path) -> None:
    big = Own((np.zeros((1000, 50), np.float32), np.arange(1000) % 3))
    first = big.load(tmp_path)
    sent = pickle.dumps(big)
    assert len(sent) < 1000
    assert pickle.loads(sent).load(tmp_path).sha256 == first.sha256
    with pytest.raises(DataError, match=r"with the data of <.*> is missing; pass it again from Python"):
        pickle.loads(sent).load(tmp_path / "elsewhere")


def test_importable_own_data_are_rebuilt_without_a_cache(tmp_path: Path) -> None:
    own = Own(rows)
    first = own.load(tmp_path)
    assert pickle.loads(pickle.dumps(own)).load(tmp_path / "elsewhere").sha256 == first.sha256


def test_own_data_from_python_are_written_by_their_hash(tmp_path: Path) -> None:
    own = Own((X, Y))
    sha256 = own.load(tmp_path).sha256
    plain = written(own)
    assert plain == {"name": "own", "of": "<builtins:tuple>", "settings": {}, "classes": None, "sha256": sha256}
    assert read(Data, plain, "data").load(tmp_path).sha256 == sha256
    assert written(read(Data, plain, "data")) == plain
    assert written(Own(rows)) == {
        "name": "own",
        "of": f"{__name__}:rows",
        "settings": {},
        "classes": None,
        "sha256": None,
    }


def test_sequences_functions_and_splits_are_read_as_own_data() -> None:
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
        ([{"x": [1.0]}, {"y": 1}], "data, split train, item 1: its fields are y, those of item 0 x"),
        ([([1.0], 0), ([1.0, 2.0], 0)], "data, split train, item 1: features has shape (2,), that of item 0 has (1,)"),
        ([(["a"], 0)], "data, split train, item 0: column 'features' has type <U1, expected numbers"),
        ([{"y": 1, "z": "a"}, {"y": 1, "z": 1}], "data, split train: column 'z': "),
        ({"train": iter([])}, "data, split train: list_iterator has no length, or its items cannot be read by index"),
        (
            {"train": (X, Y), "valid": (X[:, :1], Y)},
            "data: examples of the splits have different shapes: (2, 3), (1, 3)",
        ),
    ],
)
def test_own_data_errors_are_one_line(items: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(DataError) as error:
        Own(items).load(tmp_path)
    assert str(error.value).startswith(said)


def broken() -> None:
    raise FileNotFoundError("no data here\nand a second line")


class Short:
    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> tuple[list[float], int]:
        if index > 1:
            raise IndexError(index)
        return [1.0], 0


@pytest.mark.parametrize(
    ("items", "said"),
    [
        (broken, r"data: .*:broken: FileNotFoundError: no data here \(test_own_data\.py:\d+\)"),
        (Short(), r"data, split train, item 2: IndexError: 2 \(test_own_data\.py:\d+\)"),
        ({"train": {"x": X, "y": Y[:2]}}, r"data, split train: columns differ in length: features has 4, label has 2"),
        ((X[:0], Y[:0]), r"data, split train: there are no examples"),
        ({"train": (X, Y), "valid": (X[:0], Y[:0])}, r"data, split valid: there are no examples"),
        ((np.zeros((4, 0)), Y), r"data, split train: column 'features' has shape \(0,\), expected at least one"),
        ((X.astype(complex), Y), r"data, split train, item 0: column 'features' has type complex128, expected numbers"),
        ({"train": (X, Y), "valid": (X.astype(np.uint8), Y)}, r"data: features of split valid are uint8, which is"),
        ([(X[0], 0), (X[1].astype(np.uint8), 1)], r"data, split train, item 1: features has type uint8, that of item"),
        ([{"x": [1.0], "y": 2**70}], r"data, split train: column 'label': .*"),
    ],
)  # fmt: skip
def test_own_data_that_cannot_be_read_are_one_line_with_the_place(items: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=rf"^{said}$|^{said}"):
        Own(items).load(tmp_path)


def test_own_images_of_any_mode_are_stored_upright_on_white(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (4, 2), (9, 9, 9)).save(tmp_path / "turned.png", exif=exif)
    images = [
        Image.new("L", (4, 2), 9),
        Image.new("RGBA", (4, 2), (255, 0, 0, 0)),
        Image.fromarray(np.full((2, 4), 65535, np.uint16)),
        Image.fromarray(np.full((2, 4), 1.0, np.float32)),
        Image.new("RGB", (4, 2), (255, 255, 255)).quantize(2),
    ]
    data = Own([(image, 0) for image in images]).load(tmp_path)
    assert data.card["shape"] == [3, 2, 4]
    pixels = Classification().encode(data.splits["train"], None).rows["x"]
    assert pixels[0].unique().tolist() == [9]
    assert (pixels[1:] == 255).all()
    turned = Own([(tmp_path / "turned.png", 0), (Image.open(tmp_path / "turned.png"), 0)]).load(tmp_path)
    assert Classification().encode(turned.splits["train"], None).rows["x"].shape == (2, 3, 4, 2)


def test_images_of_different_sizes_train_a_network_for_their_scaled_size(tmp_path: Path) -> None:
    data = Own([(Image.new("RGB", (4 + k, 4)), k % 2) for k in range(3)]).load(tmp_path)
    assert "shape" not in data.card
    objective = Classification(image_size=8, grey=True)
    assert objective.input_shape(data.splits["train"], None) == (1, 8, 8)
    assert objective.encode(data.splits["train"], None).rows["x"].shape == (3, 1, 8, 8)
    assert Classification().input_shape(data.splits["train"], (3, 5, 4)) == (3, 5, 4)
