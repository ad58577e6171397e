"""The informed baseline on pages of six words, and the contact sheet of a data set."""

from __future__ import annotations

import io

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from simfl.data.base import DOCUMENTS, Split
from simfl.data.baselines import fit_baselines, score_baselines
from simfl.data.benchmarks.informed import informed
from simfl.data.io.contact_sheet import CELL, COLUMNS, contact_sheet
from simfl.data.io.images import encode_png


def page(number: int, names: tuple[str, str], rain: tuple[str, str]) -> dict:
    """Return a page with a table of two rows and the columns town and rain."""
    words = ["town", "rain", names[0], rain[0], names[1], rain[1]]
    boxes = [v for row in range(3) for left in (0.1, 0.6) for v in (left, 0.1 + 0.3 * row, left + 0.2, 0.2 + 0.3 * row)]
    picture = encode_png(Image.new("L", (40, 30), 40 * number))
    return dict(zip(DOCUMENTS.names, (str(number), "", words, boxes, picture, 40, 30), strict=True))


def split(*pages: dict) -> Split:
    """Return a split that asks for the rain of both towns of each page, and whether it rains."""
    examples = [
        {"document": i, "question": q, "answers": [a], "field": f, "part": "town" if f == "rain" else "yes"}
        for i, page in enumerate(pages)
        for q, a, f in (
            (f"What is the rain of {page['words'][2]}?", page["words"][3], "rain"),
            (f"What is the rain of {page['words'][4]}?", page["words"][5], "rain"),
            ("Does it rain?", "yes", "fact"),
        )
    ]
    return Split(pa.Table.from_pylist(examples), pa.Table.from_pylist(list(pages), schema=DOCUMENTS))


TRAIN = split(
    page(0, ("Ayr", "Bude"), ("3", "7")), page(1, ("Cork", "Deal"), ("4", "9")), page(2, ("Ely", "Fowey"), ("5", "6"))
)
TEST = split(page(3, ("Goole", "Hove"), ("2", "8")))


def test_informed_baseline_finds_the_cell_where_row_and_column_cross() -> None:
    assert informed(TRAIN)(TEST) == ["2", "8", "yes"]


def test_scores_include_each_group() -> None:
    scores = score_baselines(fit_baselines(TRAIN, seed=1), TEST, group="part")
    assert scores["informed"]["accuracy by part"] == {"town": 1.0, "yes": 1.0}
    assert scores["majority"]["accuracy by part"] == {"town": 0.0, "yes": 1.0}
    assert scores["majority"]["accuracy"] == pytest.approx(1 / 3)


def test_pages_without_words_have_no_informed_baseline() -> None:
    bare = TRAIN.documents.drop_columns("words").append_column("words", pa.array([[]] * 3, pa.list_(pa.string())))
    assert set(fit_baselines(Split(TRAIN.examples, bare), seed=1)) == {"majority", "question_only"}


def test_a_contact_sheet_shows_every_page_of_a_small_data_set_once() -> None:
    """The pages have grey levels 0, 40 and 80; a row has six cells, none wider than twice the pictures."""
    sheet = Image.open(io.BytesIO(contact_sheet(TRAIN, "field")))
    assert sheet.width == COLUMNS * (min(CELL, 80) + 8)
    pixels = np.asarray(sheet.convert("L"))
    shown = {int(pixels[12, column * 88 + 20]) for column in range(COLUMNS)}
    assert shown == {0, 40, 80}
