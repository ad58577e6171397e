"""Words, boxes, attachments and outlines of PDFs, on generated files and real invoices."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sample_files import write_pdf

from simfl.data.io.pdf import UnreadablePdf, extract_text, open_pdf, read_attachments, read_outline, render_page

pytest.importorskip("pypdfium2")


def ink(page) -> np.ndarray:
    """Return the bounding box of the dark pixels as shares: left, top, right, bottom."""
    dark = np.asarray(Image.open(io.BytesIO(render_page(page, 400))).convert("L")) < 128
    rows, columns = np.where(dark)
    return np.array([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]) / 400


def test_pdf_words_end_at_spaces_lines_and_gaps(tmp_path):
    lines = [(20, 350, "Total: 12,50"), (20, 330, "next line"), (60, 310, "far"), (120, 310, "apart")]
    with open_pdf(write_pdf(tmp_path / "a.pdf", [lines])) as document:
        assert extract_text(document[0]).words == ["Total:", "12,50", "next", "line", "far", "apart"]


@pytest.mark.parametrize("turn", [0, 90, 180, 270])
@pytest.mark.parametrize("crop", ["", "/CropBox[10 200 180 390]"])
def test_pdf_boxes_match_the_ink_of_cropped_and_rotated_pages(tmp_path, turn, crop):
    with open_pdf(write_pdf(tmp_path / "a.pdf", [[(30, 300, "HELLO")]], f"/Rotate {turn}{crop}")) as document:
        text = extract_text(document[0])
        assert text.words == ["HELLO"]
        np.testing.assert_allclose(text.boxes, ink(document[0]), atol=0.01)


def test_pdf_page_without_text_has_no_words(tmp_path):
    with open_pdf(write_pdf(tmp_path / "a.pdf", [[]])) as document:
        text = extract_text(document[0])
    assert text.words == []
    assert text.boxes.shape == (0,)


def test_pdf_attachments_and_outline_are_read(tmp_path):
    path = write_pdf(
        tmp_path / "a.pdf", [[(9, 9, "a")], [(9, 9, "b")]], attached=("x.xml", b"<a/>"), outline=[("Two  parts", 1)]
    )
    with open_pdf(path) as document:
        assert list(read_attachments(document)) == [("x.xml", b"<a/>")]
        assert list(read_outline(document)) == [("Two parts", 1)]


def test_a_file_that_is_not_a_pdf_raises_unreadable_pdf(tmp_path):
    (tmp_path / "a.pdf").write_bytes(b"no pdf")
    with pytest.raises(UnreadablePdf), open_pdf(tmp_path / "a.pdf"):
        pass


def test_real_invoices_have_the_expected_words_and_boxes(real_data: Path):
    folder = real_data / "zugferd"
    if not folder.is_dir():
        pytest.skip("shared/data/zugferd is not available")
    same = total = 0
    for line in (folder / "words.jsonl").read_text().splitlines()[:60]:
        expected = json.loads(line)
        with open_pdf(folder / expected["file"]) as document:
            text = extract_text(document[expected["page"]])
        total += 1
        if text.words == expected["words"]:  # else they differ in where kerned punctuation is cut off
            same += 1
            points = text.boxes.reshape(-1, 4) * ([expected["width"], expected["height"]] * 2)
            np.testing.assert_allclose(points, expected["boxes"], atol=0.3)
    assert same > 0.6 * total
