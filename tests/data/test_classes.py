"""Labels as classes: text is numbered, numbers are carried, and what is no class is refused where classes are read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import simfl
from simfl.data.base import Dataset
from simfl.data.classes import gaps, require_classes
from simfl.data.readers.own import Own
from simfl.errors import ConfigError, DataError
from simfl.objectives.classification import Classification

X = np.arange(24, dtype=np.float32).reshape(12, 2)
Y = np.arange(12) % 3


def own(labels: object, valid: object = None, classes: int | tuple[str, ...] | None = None) -> Dataset:
    splits = {"train": (X, np.asarray(labels))} | ({} if valid is None else {"valid": (X, np.asarray(valid))})
    return Own(splits, classes=classes).read()


def encoded(data: Dataset, split: str = "train") -> list[int]:
    return Classification().encode(data.splits[split], None).rows["label"].tolist()


@pytest.mark.parametrize("labels", [Y, Y.astype(float), Y.astype(np.uint8), Y[:, None], Y.astype(np.int64)])
def test_numbers_of_any_type_are_the_same_classes(labels: np.ndarray) -> None:
    data = own(labels)
    assert data.card["num_classes"] == 3
    assert encoded(data) == Y.tolist()


def test_booleans_are_two_classes() -> None:
    assert encoded(own(Y > 0)) == (Y > 0).astype(int).tolist()


def test_text_is_numbered_in_alphabetical_order_and_the_names_are_recorded() -> None:
    names = np.array(["dog", "cat", "fox"])[Y]
    data = own(names, names[::-1])
    assert (data.card["num_classes"], data.card["classes"]) == (3, ["cat", "dog", "fox"])
    number = {"cat": 0, "dog": 1, "fox": 2}
    assert encoded(data) == [number[name] for name in names]
    assert encoded(data, "valid") == [number[name] for name in names[::-1]]
    assert data.splits["train"].examples["label"].to_pylist() == names.tolist()
    score = Classification().score({"label": [1, 1]}, data.splits["train"], np.array([0, 1]))
    assert score["accuracy"].tolist() == [1, 0]


def test_the_names_of_classes_survive_the_cache(tmp_path: Path) -> None:
    data = Own({"train": (X, np.array(["b", "a", "c"])[Y])}).load(tmp_path)
    assert encoded(data) == [{"a": 0, "b": 1, "c": 2}[name] for name in np.array(["b", "a", "c"])[Y]]


def test_a_run_learns_labels_that_are_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIMFL_CACHE", str(tmp_path / "cache"))
    rows = [{"x": np.array([i % 2, 1.0]), "y": ["dog", "cat"][i % 2], "user": i % 4} for i in range(80)]
    phase = {"objective": "classification", "rounds": 5, "participation": 1.0}
    phase["local"] = {"optimizer": "sgd", "learning_rate": 0.5, "batch_size": 4}
    run = simfl.run(
        {"name": "animals", "data": {"train": rows[:60], "valid": rows[60:]}, "model": "mlp", "phases": [phase]}
        | {"partition": {"by": "natural", "column": "user"}},
        out=tmp_path / "run",
        backend="inline",
    )
    assert run.summary["final"]["accuracy"] == 1.0


@pytest.mark.parametrize(
    ("train", "valid", "said"),
    [
        (np.where(Y == 0, -1, Y), Y, "split train, row 0, column 'label': -1, expected a class, numbered from 0; 4 in"),
        (Y + 0.5, Y, "split train, row 0, column 'label': 0.5, expected a whole number; 12 in all"),
        (Y * 1000, Y, "split train, row 1, column 'label': 1000, above 999"),
        (Y, Y + 1, "split valid, row 2, column 'label': 3, which no label of train is"),
        (np.array(list("aba"))[Y], np.array(list("abc"))[Y], "split valid, row 2, column 'label': 'c', which no"),
        (np.array(["a", "b", "c"])[Y], Y, "split valid, column 'label': int32, but text in split train"),
        (np.eye(3)[Y], Y, "split train, column 'label': its type is fixed_size_list"),
    ],
)  # fmt: skip
def test_a_label_that_is_no_class_is_refused(train: object, valid: object, said: str) -> None:
    data = own(train, valid)
    with pytest.raises(DataError) as error:
        require_classes(data, data.splits)
    assert str(error.value).startswith(f"data, {said}")


def test_a_label_of_null_is_refused() -> None:
    data = Own({"train": [{"x": [1.0], "y": label} for label in (0, 1, None)]}).read()
    with pytest.raises(DataError, match=r"^data, split train, row 2, column 'label': None, expected a class$"):
        require_classes(data, data.splits)


def test_only_the_splits_of_the_run_need_labels() -> None:
    withheld = own(Y, -np.ones(12, int))
    assert withheld.card["num_classes"] == 3
    require_classes(withheld, ["train"])
    with pytest.raises(DataError, match="split valid, row 0, column 'label': -1"):
        require_classes(withheld, ["train", "valid"])


def test_declared_classes_allow_labels_that_train_lacks() -> None:
    data = own(Y, Y + 1, classes=5)
    assert data.card["num_classes"] == 5
    require_classes(data, data.splits)
    too_few = own(Y, Y + 1, classes=3)
    with pytest.raises(DataError, match="row 2, column 'label': 3, but the data declares 3 classes"):
        require_classes(too_few, too_few.splits)
    named = own(np.array(["b", "b", "c"])[Y], np.array(["a", "b", "c"])[Y], classes=("c", "b", "a"))
    assert encoded(named, "valid") == [2, 1, 0] * 4
    require_classes(named, named.splits)


def test_declared_classes_are_part_of_the_hash() -> None:
    assert len({own(Y).sha256, own(Y, classes=3).sha256, own(Y, classes=4).sha256}) == 3


def test_gaps_between_the_numbers_of_classes_are_noted() -> None:
    assert gaps(own(Y * 2)) == ["data, split train: 3 of the classes 0 to 4 have examples, 1 has none"]
    assert gaps(own(Y)) == []
    assert gaps(own(Y * 2, classes=5)) == []


def test_labels_with_fractions_stay_as_they_are_for_other_objectives() -> None:
    data = own(Y / 2)
    assert data.splits["train"].examples["label"].to_pylist()[:3] == [0, 0.5, 1]
    assert "num_classes" not in data.card
    with pytest.raises(DataError, match=r"classification: row 1, column 'label' is 0\.5, which is no class"):
        encoded(data)


def test_the_encoding_refuses_text_without_names_and_features_of_different_lengths() -> None:
    data = own(np.array(["a", "b", "c"])[Y])
    bare = data.splits["train"].examples.replace_schema_metadata({})
    with pytest.raises(DataError, match="labels are text, but the data do not name their classes"):
        Classification().encode(type(data.splits["train"])(bare), None)
    ragged = bare.set_column(0, "features", [[[1.0], [1.0, 2.0], *[[1.0]] * 9, []]])
    with pytest.raises(DataError, match="classification: row 1 has 2 features, row 0 has 1"):
        Classification().check(type(data.splits["train"])(ragged))


def test_the_number_of_declared_classes_is_positive() -> None:
    from simfl.config.fields import read
    from simfl.data.base import Data

    with pytest.raises(ConfigError, match=r"^data\.classes: 0 is not"):
        read(Data, {"name": "own", "of": "m:f", "classes": 0}, "data")
