"""Tables as pages: positions of words and ink."""

import io

import numpy as np
from PIL import Image

from simfl.data.benchmarks.fonts import widths
from simfl.data.io.table_page import ASCENT, DESCENT, FAMILY, LEADING, MARGIN, MAX_COLUMN_WIDTH, PADDING, lay_out_table


def test_table_page_words_are_in_row_order():
    page = lay_out_table(["Year", "Best team"], [["1999", "A-League"], ["2000"]], title="a list")
    assert page.words == ["a", "list", "Year", "Best", "team", "1999", "A-League", "2000"]
    assert page.boxes.shape == (8 * 4,)
    assert page.boxes.min() >= 0
    assert page.boxes.max() <= 1


def test_table_page_box_matches_a_manual_layout():
    page = lay_out_table(["A"], [["B"]])
    bold, plain = widths(FAMILY, True)["A"], widths(FAMILY, False)["B"]
    side = max(bold, plain, 1.0)
    line = ASCENT + DESCENT + PADDING  # a row of one line: its box with half a padding above and below
    width, height = 2 * MARGIN + 2 * PADDING + side, 2 * MARGIN + 2 * line
    top = MARGIN + line + PADDING / 2
    left = MARGIN + PADDING
    expected = [left / width, top / height, (left + plain) / width, (top + ASCENT + DESCENT) / height]
    np.testing.assert_allclose(page.boxes[4:], expected, rtol=1e-5)


def test_table_page_wraps_cells_and_widens_columns_for_long_words():
    page = lay_out_table(["x"], [["word " * 60], ["W" * 40]])
    wrapped = [w for w in page.placed if w.text == "word"]
    longest = widths(FAMILY, False)["W" * 40]
    assert len({w.baseline for w in wrapped}) > 1
    assert longest > MAX_COLUMN_WIDTH
    assert max(w.right for w in wrapped) <= MARGIN + PADDING + longest + 1e-6
    steps = sorted({w.baseline for w in wrapped})
    np.testing.assert_allclose(np.diff(steps), LEADING)


def test_table_page_ink_is_inside_the_boxes():
    page = lay_out_table(["Name", "Value"], [["first", "12,345"], ["second", "6,789.00"]])
    size = 500
    dark = np.asarray(Image.open(io.BytesIO(page.draw(size)))) < 100
    allowed = np.zeros_like(dark)
    for left, top, right, bottom in page.boxes.reshape(-1, 4) * size:
        box = (slice(int(top) - 2, int(bottom) + 3), slice(int(left) - 4, int(right) + 5))
        assert dark[box].any()
        allowed[box] = True
    assert not (dark & ~allowed).any()


def test_table_page_draws_empty_cells_and_large_tables():
    assert len(lay_out_table(["", ""], [["", ""]]).draw(32)) > 50
    huge = lay_out_table([f"c{i}" for i in range(30)], [[str(r)] * 30 for r in range(500)])
    assert Image.open(io.BytesIO(huge.draw(64))).size == (64, 64)
