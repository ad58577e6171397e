"""Names and boxes of foreign files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from simfl.data.io import records
from simfl.data.io.classification import LabeledImage, build_image_dataset
from simfl.data.io.images import encode_png
from simfl.data.io.questions import ImageStorage, QuestionSplitBuilder
from simfl.data.io.tables import TableBuilder
from simfl.errors import DataError

BOX = [0.1, 0.2, 0.3, 0.4]


@pytest.mark.parametrize("name", ["../x.png", "a/../../x.png", "/etc/passwd", "", "..", "a\0b", "a" * 256, "\ud800"])
def test_a_name_that_leads_outside_of_its_folder_is_refused(name: str, tmp_path: Path) -> None:
    for read in (lambda: records.inside(tmp_path, name, "list row 3"), lambda: records.find(tmp_path, "a.png", name)):
        with pytest.raises(DataError, match="is not the name of a file in the folder"):
            read()


def test_a_name_inside_of_its_folder_is_found(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x..y.png").touch()
    assert records.find(tmp_path, "b.png", "a/x..y.png") == tmp_path / "a" / "x..y.png"
    assert records.inside(tmp_path, "a/new.png") == tmp_path / "a" / "new.png"


def test_boxes_of_published_files_may_have_their_corners_in_any_order() -> None:
    record = {"boxes": [[0.3, 0.4, 0.1, 0.2], BOX]}
    np.testing.assert_allclose(records.get_boxes("row 1", record, "boxes", 2), [BOX, BOX], atol=1e-7)


@pytest.mark.parametrize(
    ("boxes", "said"),
    [
        ([[100, 200, 300, 400]], "row 1: boxes contains 400, as boxes in pixels do; expected shares of the page"),
        ([[0.1, float("nan"), 0.3, 0.4]], "row 1: boxes contains nan"),
        ([BOX, BOX], "row 1: boxes does not have 4 numbers for each of 1 words"),
        ([[0.1, None, 0.3, 0.4]], "row 1: boxes contains nan"),
    ],
)
def test_boxes_that_are_no_shares_of_a_page_are_refused(boxes: list, said: str) -> None:
    with pytest.raises(DataError) as error:
        records.get_boxes("row 1", {"boxes": boxes}, "boxes", 1)
    assert str(error.value) == said


def test_other_words_of_a_page_that_is_known_are_noted() -> None:
    builder = QuestionSplitBuilder(ImageStorage(8))
    for words in (["a"], ["a"], ["b"], []):
        builder.add_page("row", "page", None, words, BOX * len(words))
    assert builder.noted == {"other words of a known page": 1}


@pytest.mark.parametrize(
    ("value", "kind", "said"),
    [
        (2**40, pa.int32(), "row 4097, column 'x': 1099511627776 is not int32"),
        ("a\udcff", pa.string(), "row 4097, column 'x': 'a\\udcff' is not UTF-8"),
        ([1], pa.string(), "row 4097, column 'x': [1] is not string"),
    ],
)
def test_a_value_that_a_column_cannot_hold_is_named(value: object, kind: pa.DataType, said: str) -> None:
    table = TableBuilder(pa.schema([("x", kind)]))
    for row in range(5000):
        table.add(x=value if row == 4097 else None)
    with pytest.raises(DataError) as error:
        table.table()
    assert str(error.value) == said


def test_a_label_beyond_the_number_of_images_is_refused(tmp_path: Path) -> None:
    from PIL import Image

    (tmp_path / "0.png").write_bytes(encode_png(Image.new("L", (2, 2))))
    listed = [LabeledImage(f"list row {label}", str(label), tmp_path / "0.png", label, "c", "") for label in (0, 10**9)]
    with pytest.raises(
        DataError, match="list row 1000000000: label 1000000000, but there are fewer images than classes"
    ):
        build_image_dataset("made", {"train": listed}, 8, "refuse", "")
