"""Faults of data sets: each is named by split, row and column, and refused before a run leaves anything behind."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from torch import nn

import simfl
from simfl.data.base import DOCUMENTS, QUESTIONS, Data, Dataset, Split
from simfl.data.check import check_dataset
from simfl.data.io.arrow_store import write_dataset
from simfl.data.io.images import encode_png
from simfl.data.soundness import IMAGES, find_faults, require_sound
from simfl.errors import ConfigError, DataError
from simfl.objectives.classification import Classification
from simfl.protocol import Examples

NOISE = encode_png(Image.fromarray(np.random.default_rng(0).integers(0, 255, (20, 20), dtype=np.uint8)))
PAGE = encode_png(Image.new("L", (4, 4)))
WORDS, BOXES = ["Total", "12.50"], [0.1, 0.1, 0.2, 0.2, 0.3, 0.1, 0.4, 0.2]
NAN = float("nan")


def document(number: int, **changed: Any) -> dict[str, Any]:
    whole = {
        "id": f"d{number}",
        "provider": "p",
        "words": WORDS,
        "boxes": BOXES,
        "image": PAGE,
        "width": 4,
        "height": 4,
    }
    return whole | changed


def question(number: int, **changed: Any) -> dict[str, Any]:
    whole = {"id": f"q{number}", "document": number % 3, "question": "total?", "answers": ["12.50"], "field": ""}
    return whole | changed


def dataset(documents: dict[str, Any] | None = None, questions: dict[str, Any] | None = None) -> Dataset:
    """Return a split of three documents, of which the second is changed, and four questions, the third changed."""
    pages = [document(number, **(documents or {} if number == 1 else {})) for number in range(3)]
    asked = [question(number, **(questions or {} if number == 2 else {})) for number in range(4)]
    split = Split(pa.Table.from_pylist(asked, QUESTIONS), pa.Table.from_pylist(pages, DOCUMENTS))
    return Dataset("made", {"valid": split}, "")


def box(*numbers: float | None) -> dict[str, Any]:
    return {"boxes": [*BOXES[:4], *numbers]}


WORD = "data, split valid, documents row 1 ('d1'), column 'boxes': word 1 ('12.50') has the box "
ORDER = "expected left, top, right, bottom in this order"
INSIDE = "expected left, top, right, bottom as shares of the page"
PIXELS = "; they look like pixels, divide them by the page's width and height"


@pytest.mark.parametrize(
    ("documents", "said"),
    [
        (box(NAN, 0.1, 0.2, 0.3), f"{WORD}[nan, 0.1, 0.2, 0.3], expected 4 finite numbers"),
        (box(0.1, 0.1, float("inf"), 0.3), f"{WORD}[0.1, 0.1, inf, 0.3], expected 4 finite numbers"),
        (box(None, 0.1, 0.2, 0.3), f"{WORD}[null, 0.1, 0.2, 0.3], expected 4 finite numbers"),
        (box(0.5, 0.5, 1.5, 1.7), f"{WORD}[0.5, 0.5, 1.5, 1.7], {INSIDE}"),
        (box(-0.5, 0.0, 0.1, 0.2), f"{WORD}[-0.5, 0, 0.1, 0.2], {INSIDE}"),
        (box(100, 100, 200, 200), f"{WORD}[100, 100, 200, 200], {INSIDE}{PIXELS}"),
        (box(0.9, 0.9, 0.1, 0.1), f"{WORD}[0.9, 0.9, 0.1, 0.1], {ORDER}"),
        (box(0.1, 0.9, 0.2, 0.1), f"{WORD}[0.1, 0.9, 0.2, 0.1], {ORDER}"),
        (
            {"boxes": BOXES[:4]},
            "data, split valid, documents row 1 ('d1'), column 'boxes': 2 words have 1 boxes;"
            " expected 4 numbers for each word",
        ),
        (
            {"words": ["Total", None]},
            "data, split valid, documents row 1 ('d1'), column 'words': word 1 is null, expected text",
        ),
        (
            {"image": NOISE[:-200]},
            "data, split valid, documents row 1 ('d1'), column 'image': not a readable image (image file is truncated)",
        ),
        (
            {"image": b""},
            "data, split valid, documents row 1 ('d1'), column 'image': not a readable image; allowed: PNG, JPEG, GIF,"
            " BMP, PPM, WEBP, TIFF, JPEG2000",
        ),
    ],
)  # fmt: skip
def test_a_fault_of_a_document_names_document_and_word(documents: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError) as error:
        require_sound(dataset(documents), decode=IMAGES)
    assert str(error.value) == said


@pytest.mark.parametrize(
    ("questions", "said"),
    [
        ({"document": 9}, "column 'document': document 9, but the split has documents 0 to 2"),
        ({"document": -1}, "column 'document': document -1, but the split has documents 0 to 2"),
        ({"document": None}, "column 'document': document null, but the split has documents 0 to 2"),
        ({"question": None}, "column 'question': null, expected text"),
        ({"answers": ["a", None]}, "column 'answers': an answer is null, expected text"),
    ],
)
def test_a_fault_of_a_question_names_its_row(questions: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError) as error:
        require_sound(dataset(questions=questions))
    assert str(error.value) == f"data, split valid, examples row 2 ('q2'), {said}"


def test_sound_documents_have_no_fault_and_may_reach_over_the_edge_by_a_rounding_error() -> None:
    assert list(find_faults(dataset(), decode=IMAGES)) == []
    assert list(find_faults(dataset(box(-0.004, 0.0, 1.004, 1.0)))) == []
    assert list(find_faults(dataset({"words": None, "boxes": None, "image": None}), decode=IMAGES)) == []
    assert list(find_faults(dataset(questions={"answers": None}))) == []


def test_faults_after_many_words_and_in_many_batches_are_found_at_their_place() -> None:
    chunks = [pa.Table.from_pylist([document(100 * part + row) for row in range(50)], DOCUMENTS) for part in range(3)]
    wrong = pa.Table.from_pylist([document(7), document(8, **box(0.3, 0.1, 0.2, 0.2))], DOCUMENTS)
    split = Split(pa.Table.from_pylist([question(0)], QUESTIONS), pa.concat_tables([*chunks, wrong, *chunks]))
    (fault,) = find_faults(Dataset("made", {"train": split}, ""))
    assert (fault.count, fault.place) == (1, ", documents row 151 ('d8'), column 'boxes'")


def plain(**columns: Any) -> Dataset:
    return Dataset("made", {"train": Split(pa.table(columns))}, "")


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"score": [0.5, NAN]}, "row 1, column 'score': nan, expected a finite number"),
        ({"score": pa.array([0.5, -np.inf], pa.float32())}, "row 1, column 'score': -inf, expected a finite number"),
        ({"x": [[1.0], [1.0, NAN], [2.0]]}, "row 1, column 'x': nan, expected a finite number"),
        ({"x": pa.array([[1, 2], [3, NAN]], pa.list_(pa.float32(), 2))}, "row 1, column 'x': nan, expected a finite"),
        ({"image": ["a.png"]}, "column 'image': its type is string, expected an encoded image, as bytes"),
        ({"a\nb": [1]}, "column 'a\\nb': not a name of a column; allowed: letters, digits, spaces and _"),
        ({"<script>": [1]}, "column '<script>': not a name of a column"),
    ],
)
def test_numbers_types_and_names_are_checked_in_any_table(columns: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError) as error:
        require_sound(plain(**columns))
    assert str(error.value).startswith(f"data, split train, {said}")


def test_null_and_integers_are_numbers_that_are_allowed() -> None:
    assert list(find_faults(plain(score=[0.5, None], count=[1, 2**40], text=["a", None]))) == []


@pytest.mark.parametrize("name", ["../up", "..", ".hidden", "a/b", "", "a\nb", "x" * 300])
def test_the_name_of_a_split_is_part_of_a_file_name(name: str, tmp_path: Path) -> None:
    made = Dataset("made", {name: Split(pa.table({"a": [1]}))}, "")
    with pytest.raises(DataError, match=r"^data, split .*: not a name; allowed: letters, digits, '_', '-' and '.'"):
        require_sound(made)
    with pytest.raises(DataError, match="is not a name of a split"):
        write_dataset(tmp_path / "made", made)
    assert list(tmp_path.rglob("*.arrow")) == []


def test_the_check_of_a_data_set_lists_faults_of_every_kind() -> None:
    wrong = dataset(box(NAN, 0.1, 0.2, 0.3) | {"words": ["Total", None]}, {"question": None})
    found = {finding.message: finding.example for finding in check_dataset(wrong).findings if finding.is_error}
    assert {"boxes that are not numbers", "words that are null", "questions that are null"} <= set(found)
    assert "word 1 (None) has the box [nan, 0.1, 0.2, 0.3]" in found["boxes that are not numbers"]
    assert not check_dataset(wrong).passed


def test_the_check_of_a_data_set_survives_tables_of_other_types() -> None:
    table = pa.table({"document": [0], "question": ["?"], "answers": ["12.50"]})
    made = Dataset("made", {"train": Split(table, pa.Table.from_pylist([document(0)], DOCUMENTS))}, "")
    messages = [finding.message for finding in check_dataset(made).findings]
    assert messages == ["columns of a wrong type"]


X = np.arange(40, dtype=np.float32).reshape(20, 2)
Y = np.arange(20) % 2


def changed(values: np.ndarray, row: int, value: float) -> np.ndarray:
    new = values.astype(np.float64) if isinstance(value, float) else values.astype(np.int64)
    new[row] = value
    return new


def experiment(data: object, **changes: object) -> dict[str, object]:
    phase = {"objective": "classification", "rounds": 1, "participation": 1.0, "local": {"optimizer": "sgd"}}
    phase["local"] = {"optimizer": "sgd", "learning_rate": 0.1, "batch_size": 4}
    base = {"name": "faulty", "data": data, "partition": {"by": "iid", "clients": 2}, "model": "mlp", "phases": [phase]}
    return base | changes


def test_numbers_within_mappings_and_nested_lists_are_checked():
    columns = {
        "label": [0, 1, 0],
        "facts": [{"weight": 1.0}, {"weight": 2.0}, {"weight": math.inf}],
        "curves": [[[1.0], []], [[2.0, 3.0], [4.0, NAN]], []],
    }
    split = Split(pa.table(columns))
    found = [str(fault) for fault in find_faults(Dataset("d", {"train": split}, "0"))]
    assert found == [
        "data, split train, row 2, column 'facts.weight': inf, expected a finite number (null: unknown)",
        "data, split train, row 1, column 'curves': nan, expected a finite number (null: unknown)",
    ]


@pytest.mark.parametrize(
    ("train", "valid", "said"),
    [
        ((X, changed(Y, 3, -1)), (X, Y), "split train, row 3, column 'label': -1, expected a class, numbered from 0"),
        ((X, Y), (X, changed(Y, 5, -5)), "split valid, row 5, column 'label': -5, expected a class"),
        ((X, changed(Y, 3, 10**6)), (X, Y), "split train, row 3, column 'label': 1000000, above 999"),
        ((X, changed(Y, 3, 2**40)), (X, Y), "split train, row 3, column 'label': 1099511627776, above 999"),
        ((X, changed(Y, 3, 0.5)), (X, Y), "split train, row 3, column 'label': 0.5, expected a whole number"),
        ((X, changed(Y, 3, NAN)), (X, Y), "split train, row 3, column 'label': nan, expected a finite number"),
        ((X, Y), (X, changed(Y, 4, 7)), "split valid, row 4, column 'label': 7, which no label of train is"),
        ((changed(X, 3, NAN), Y), (X, Y), "split train, row 3, column 'features': nan, expected a finite number"),
        ((X, Y), (changed(X, 6, np.inf), Y), "split valid, row 6, column 'features': inf, expected a finite number"),
        ((X.astype(np.float64) * 1e300, Y), (X, Y), "split train, row 0, column 'features': 1e+300 is too large"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("backend", ["inline"])
def test_a_run_with_faulty_rows_is_refused_and_leaves_no_folder(
    train: tuple, valid: tuple, said: str, backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIMFL_CACHE", str(tmp_path / "cache"))
    with pytest.raises(DataError) as error:
        simfl.run(experiment({"train": train, "valid": valid}), out=tmp_path / "run", backend=backend)
    assert str(error.value).startswith(f"data, {said}")
    assert not (tmp_path / "run").exists()


def documents_without(column: str) -> Callable[[], dict[str, object]]:
    def make() -> dict[str, object]:
        whole = dataset().splits["valid"]
        assert whole.documents is not None
        if column in whole.examples.column_names and column != "id":
            split = Split(whole.examples.drop_columns([column]), whole.documents)
        else:
            split = Split(whole.examples, whole.documents.drop_columns([column]))
        return {"train": split, "valid": split}

    return make


@pytest.mark.parametrize(
    ("column", "said"),
    [
        ("boxes", "data, split train, documents, column 'boxes': missing, but the documents have 'words'"),
        (
            "words",
            "data, split train: docvqa: the documents have no column 'words'; their columns: id, provider, boxes",
        ),
        ("image", "data, split train: docvqa: the documents have neither 'image' nor 'image_path'"),
        ("answers", "data, split train: docvqa: the examples have no column 'answers'; their columns: id, document"),
        ("question", "data, split train: docvqa: the examples have no column 'question'; their columns: id, document"),
        ("document", "data, split train, examples, column 'document': missing, the row of a document is needed"),
    ],
)
def test_a_missing_column_is_named_before_the_run(
    column: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIMFL_CACHE", str(tmp_path / "cache"))
    phase = {"objective": "docvqa", "rounds": 1, "clients_per_round": 1}
    phase["local"] = {"optimizer": "sgd", "learning_rate": 0.1, "steps": 1}
    changes = {"model": {"name": "vt5", "weights": "vt5_tiny"}, "phases": [phase]}
    with pytest.raises(DataError) as error:
        simfl.run(experiment(documents_without(column), **changes), out=tmp_path / "run", backend="inline")
    assert str(error.value).startswith(said)
    assert not (tmp_path / "run").exists()


@dataclass(frozen=True)
class Mine(Data):
    """Data of the user, in memory."""

    made: object = None

    def load(self, cache: Path) -> Any:
        return self.made


IMAGES_OF_NOTHING = Split(pa.table({"image": [b"x"], "label": [0]}))


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ([1], "data: load() returned list, expected simfl.data.base.Dataset"),
        (Dataset("made", {"valid": IMAGES_OF_NOTHING}, ""), "data: there is no split 'train'; the data has valid"),
        (plain(features=[[1.0], [NAN]], label=[0, 1]), "data, split train, row 1, column 'features': nan"),
        (Dataset("made", {"train": IMAGES_OF_NOTHING}, ""), "data, split train, row 0, column 'image': not a readable"),
        (plain(features=pa.array([], pa.list_(pa.float32())), label=[]), "data, split train: there are no examples"),
    ],
)
def test_a_data_component_of_the_user_is_checked_at_every_run(made: object, said: str, tmp_path: Path) -> None:
    with pytest.raises(DataError) as error:
        simfl.run(experiment(Mine(made), evaluate={"splits": ["train"]}), out=tmp_path / "run", backend="inline")
    assert str(error.value).startswith(said)
    assert not (tmp_path / "run").exists()


def test_a_model_with_fewer_outputs_than_classes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIMFL_CACHE", str(tmp_path / "cache"))
    data = {"train": (X, np.arange(20) % 3), "valid": (X, np.arange(20) % 3)}
    with pytest.raises(ConfigError, match=r"^model: it has 2 outputs, but the data has 3 classes$"):
        simfl.run(experiment(data, model=nn.Linear(2, 2)), out=tmp_path / "run", backend="inline")
    assert not (tmp_path / "run").exists()
    assert simfl.run(experiment(data, model=nn.Linear(2, 4)), out=tmp_path / "run", backend="inline").summary["final"]


def test_encoded_numbers_that_are_not_finite_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An objective of the user may make NaN from numbers that are finite."""
    monkeypatch.setenv("SIMFL_CACHE", str(tmp_path / "cache"))
    phase = {"objective": Logarithm(), "rounds": 1, "participation": 1.0}
    phase["local"] = {"optimizer": "sgd", "learning_rate": 0.1}
    data = {"train": (X, Y), "valid": (X, Y)}
    with pytest.raises(DataError, match=r"^data, split .*: row 0: the encoded 'x' has a number that is not finite$"):
        simfl.run(experiment(data, phases=[phase]), out=tmp_path / "run", backend="inline")


@dataclass(frozen=True)
class Logarithm(Classification):
    """Classification of the logarithm of the features."""

    def encode(self, split: Any, tokenizer: Any) -> Examples:
        examples = super().encode(split, tokenizer)
        return Examples({**examples.rows, "x": examples.rows["x"].log()})
