"""Words, boxes and what else is in a PDF, on files made by hand and on real invoices."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
from made import pdf
from PIL import Image

from simfl.data.io.pdf_pages import UnreadablePdf, attachments, draw, opened, outline, words

pytest.importorskip("pypdfium2")


def ink(page) -> np.ndarray:
    """Where the page is dark, as shares: left, top, right, bottom."""
    dark = np.asarray(Image.open(io.BytesIO(draw(page, 400))).convert("L")) < 128
    rows, columns = np.where(dark)
    return np.array([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]) / 400


def test_words_are_split_at_spaces_lines_and_jumps(tmp_path):
    lines = [(20, 350, "Total: 12,50"), (20, 330, "next line"), (60, 310, "far"), (120, 310, "apart")]
    with opened(pdf(tmp_path / "a.pdf", [lines])) as document:
        assert words(document[0]).words == ["Total:", "12,50", "next", "line", "far", "apart"]


@pytest.mark.parametrize("turn", [0, 90, 180, 270])
@pytest.mark.parametrize("crop", ["", "/CropBox[10 200 180 390]"])
def test_boxes_are_where_the_ink_is_on_cropped_and_turned_pages(tmp_path, turn, crop):
    with opened(pdf(tmp_path / "a.pdf", [[(30, 300, "HELLO")]], f"/Rotate {turn}{crop}")) as document:
        text = words(document[0])
        assert text.words == ["HELLO"]
        np.testing.assert_allclose(text.boxes, ink(document[0]), atol=0.01)


def test_a_page_without_text_has_no_words(tmp_path):
    with opened(pdf(tmp_path / "a.pdf", [[]])) as document:
        text = words(document[0])
    assert text.words == []
    assert text.boxes.shape == (0,)


def test_attachments_and_outline_are_read(tmp_path):
    path = pdf(
        tmp_path / "a.pdf", [[(9, 9, "a")], [(9, 9, "b")]], attached=("x.xml", b"<a/>"), outline=[("Two  parts", 1)]
    )
    with opened(path) as document:
        assert list(attachments(document)) == [("x.xml", b"<a/>")]
        assert list(outline(document)) == [("Two parts", 1)]


def test_what_is_no_pdf_is_said(tmp_path):
    (tmp_path / "a.pdf").write_bytes(b"no pdf")
    with pytest.raises(UnreadablePdf), opened(tmp_path / "a.pdf"):
        pass


def test_real_invoices_have_the_words_and_boxes_known_of_them(real_data: Path):
    folder = real_data / "zugferd"
    if not folder.is_dir():
        pytest.skip("shared/data/zugferd is not available")
    same = total = 0
    for line in (folder / "words.jsonl").read_text().splitlines()[:60]:
        told = json.loads(line)
        with opened(folder / told["file"]) as document:
            text = words(document[told["page"]])
        total += 1
        if text.words == told["words"]:  # else they differ in where kerned punctuation is cut off
            same += 1
            points = text.boxes.reshape(-1, 4) * ([told["width"], told["height"]] * 2)
            np.testing.assert_allclose(points, told["boxes"], atol=0.3)
    assert same > 0.6 * total
