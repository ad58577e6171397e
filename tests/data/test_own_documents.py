"""Documents of the user: items with a question and a page, and tables in other types than the schema's."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

import simfl
from simfl.data.base import DOCUMENTS, QUESTIONS, Dataset, Split
from simfl.data.io.images import encode_png
from simfl.data.readers.own import Own
from simfl.errors import DataError
from simfl.objectives.docvqa import DocVqa

PAGES = [encode_png(Image.new("RGB", (6, 8), (shade, 0, 0))) for shade in (10, 200)]
BOXES = [[0.1, 0.1, 0.2, 0.2], [0.3, 0.1, 0.4, 0.2]]


def item(page: int, number: int, **changes: Any) -> dict[str, Any]:
    whole: dict[str, Any] = {"id": f"q{number}", "question": "total?", "answers": ["12.50"], "field": "total"}
    whole |= {"words": ["Total", "12.50"], "boxes": BOXES, "image": PAGES[page], "provider": f"p{page}"}
    return whole | changes


def read(items: object) -> Split:
    return Own({"train": items}).read().splits["train"]


def test_items_become_questions_and_documents_that_are_stored_once() -> None:
    split = read([item(0, 0), item(1, 1), item(0, 2, question="date?")])
    assert split.documents is not None
    assert split.examples["document"].to_pylist() == [0, 1, 0]
    assert split.examples["question"].to_pylist() == ["total?", "total?", "date?"]
    assert split.documents["provider"].to_pylist() == ["p0", "p1"]
    assert split.documents.select(["width", "height"]).to_pylist() == [{"width": 6, "height": 8}] * 2
    assert split.examples.schema.remove_metadata() == QUESTIONS
    assert split.documents.schema == DOCUMENTS


FLAT = [number for box in BOXES for number in box]


@pytest.mark.parametrize("boxes", [BOXES, FLAT, np.array(BOXES), np.array(FLAT, np.float32), [tuple(b) for b in BOXES]])
def test_boxes_may_be_lists_of_four_or_one_flat_list(boxes: Any) -> None:
    split = read([item(0, 0, boxes=boxes)])
    assert split.documents is not None
    np.testing.assert_allclose(split.documents["boxes"][0].as_py(), FLAT, atol=1e-6)


@pytest.mark.parametrize(
    ("answers", "expected"),
    [("12.50", ["12.50"]), (["12.50", "12,50"], ["12.50", "12,50"]), (("a",), ["a"]), (None, []), ([], [])],
)
def test_an_answer_may_be_a_text_alone(answers: Any, expected: list[str]) -> None:
    assert read([item(0, 0, answers=answers)]).examples["answers"].to_pylist() == [expected]
    renamed = {("answer" if name == "answers" else name): value for name, value in item(0, 0, answers=answers).items()}
    assert read([renamed]).examples["answers"].to_pylist() == [expected]


def test_an_image_may_be_a_picture_bytes_or_a_file(tmp_path: Path) -> None:
    (tmp_path / "page.png").write_bytes(PAGES[0])
    for image in (Image.open(tmp_path / "page.png"), PAGES[0], tmp_path / "page.png", str(tmp_path / "page.png")):
        split = read([item(0, 0, image=image)])
        assert split.documents is not None
        stored = split.documents["image"][0].as_py()
        assert np.asarray(Image.open(io.BytesIO(stored)))[0, 0].tolist() == [10, 0, 0]


def test_pages_may_be_named_and_must_then_be_equal() -> None:
    split = read([item(0, 0, document="a"), item(0, 1, document="a"), item(1, 2, document=7)])
    assert split.documents is not None
    assert split.documents["id"].to_pylist() == ["a", "7"]
    with pytest.raises(DataError, match=r"item 1: its page differs from the page that document 'a' has before"):
        read([item(0, 0, document="a"), item(1, 1, document="a")])


def test_further_fields_are_columns_and_pages_need_no_question() -> None:
    split = read([item(0, 0, task="x", label=3)])
    assert split.examples.select(["task", "label"]).to_pylist() == [{"task": "x", "label": 3}]
    unlabelled = read([{"words": ["a"], "boxes": [0, 0, 1, 1], "image": PAGES[0]}])
    assert unlabelled.examples.select(["id", "question", "answers"]).to_pylist() == [
        {"id": "0", "question": "", "answers": []}
    ]
    photo = read([{"question": "colour?", "answers": "red", "image": PAGES[0]}])
    assert photo.documents is not None
    assert photo.documents.select(["words", "boxes"]).to_pylist() == [{"words": [], "boxes": []}]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"words": "Total 12.50"}, "item 0: words is 'Total 12.50', expected a list of texts"),
        ({"words": ["Total", 12.5]}, "item 0: word 1 is 12.5, expected text"),
        ({"boxes": [[0.1, 0.1, 0.2], BOXES[1]]}, "item 0: the box of word 0 is [0.1, 0.1, 0.2], expected four numbers"),
        ({"boxes": [["0", 0, 1, 1], BOXES[1]]}, "item 0: the box of word 0 is ['0', 0, 1, 1], expected four numbers"),
        ({"boxes": "0 0 1 1"}, "item 0: boxes is '0 0 1 1', expected four numbers for each word"),
        ({"answers": 12.5}, "item 0: an answer is 12.5, expected text or a list of texts"),
        ({"answers": ["a", 1]}, "item 0: an answer is 1, expected text or a list of texts"),
        ({"image": "gone.png"}, "item 0: the image 'gone.png': No such file or directory"),
        ({"image": 3}, "item 0: int is no image; allowed: PIL images, bytes and paths of files"),
        ({"provider": 1.5}, "item 0: provider is 1.5, expected text"),
    ],
)
def test_an_item_that_cannot_be_read_is_named(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError) as error:
        read([item(0, 0, **changes)])
    assert str(error.value).startswith(f"data, split train, {said}")


def test_a_question_without_a_page_is_a_text_and_refused_where_documents_are_read() -> None:
    split = read([{"question": "?", "answers": "a"}])
    assert split.documents is None
    with pytest.raises(DataError, match=r"docvqa: needs documents .*; the data have none, only question, answers"):
        DocVqa().check(split)
    with pytest.raises(DataError, match="items have a question, but no words and no image; their fields: question"):
        read([{"question": "?", "answers": "a", "boxes": []}])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"boxes": [[10, 10, 20, 20], [30, 10, 40, 20]]}, r"documents row 0 .*, column 'boxes': word 0 .*pixels"),
        ({"boxes": [BOXES[0], None]}, r"documents row 0 \(.*\), column 'boxes': word 1 \('12.50'\) has the box \[null"),
        ({"boxes": BOXES[:1]}, r"documents row 0 \(.*\), column 'boxes': 2 words have 1 boxes"),
        ({"words": ["Total", None]}, r"documents row 0 \(.*\), column 'words': word 1 is null"),
        ({"image": PAGES[0][:40]}, r"documents row 0 \(.*\), column 'image': not a readable image"),
        ({"question": None}, r"examples row 0 \('q0'\), column 'question': null"),
    ],
)  # fmt: skip
def test_own_documents_are_checked_as_those_of_readers(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=rf"^data, split train, {said}"):
        Own({"train": [item(0, 0, **changes)]}).load(tmp_path)
    report = simfl.check_data({"train": [item(0, 0, **changes)]})
    assert [finding for finding in report.findings if finding.is_error]


def test_tables_of_other_types_are_converted_to_the_schema() -> None:
    whole = read([item(0, 0), item(1, 1)])
    assert whole.documents is not None
    nested = pa.array([BOXES, BOXES], pa.list_(pa.list_(pa.float64())))
    examples = whole.examples.drop_columns(["id"])
    examples = examples.set_column(0, "document", whole.examples["document"].cast(pa.int64()))
    column = examples.column_names.index("answers")
    examples = examples.set_column(column, "answers", pa.array(["12.50", "12.50"]))
    column = examples.column_names.index("question")
    examples = examples.set_column(column, "question", examples["question"].cast(pa.large_string()))
    documents = whole.documents.set_column(whole.documents.column_names.index("boxes"), "boxes", nested)
    column = documents.column_names.index("provider")
    documents = documents.set_column(column, "provider", documents["provider"].dictionary_encode())
    found = read(Split(examples, documents))
    assert found.documents is not None
    assert found.documents.equals(whole.documents)
    expected = whole.examples.select(["question", "answers", "field"])
    assert found.examples.select(["question", "answers", "field"]).equals(expected)
    assert found.examples["id"].to_pylist() == ["0", "1"]


def test_a_split_in_the_schema_is_taken_as_it_is() -> None:
    whole = read([item(0, 0), item(1, 1)])
    made = Dataset("mine", {"train": whole}, "f" * 64, {"licence": "mine"})
    found = Own(lambda: made).read()
    assert (found.sha256, found.card["licence"]) == ("f" * 64, "mine")
    assert found.splits["train"] is whole


def test_documents_from_python_train_a_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIMFL_CACHE", str(tmp_path / "cache"))
    items = [item(number % 2, number) for number in range(8)]
    phase = {"objective": {"name": "docvqa", "max_tokens": 64}, "rounds": 1, "clients_per_round": 2}
    phase["local"] = {"optimizer": "sgd", "learning_rate": 0.1, "steps": 1, "batch_size": 2}
    run = simfl.run(
        {"name": "mine", "data": {"train": items, "valid": items[:2]}, "phases": [phase]}
        | {"model": {"name": "vt5", "weights": "vt5_tiny"}, "partition": {"by": "natural", "column": "provider"}},
        out=tmp_path / "run",
        backend="inline",
    )
    assert run.summary["status"] == "completed"
    assert len(run.partition) == 2
