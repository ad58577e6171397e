"""Tables as pages: where the words stand and where the ink is."""

import io

import numpy as np
from PIL import Image

from simfl.data.benchmarks.fonts import widths
from simfl.data.readers.table_page import ASCENT, DESCENT, FAMILY, LEADING, MARGIN, PADDING, WIDEST, lay_out


def test_words_come_row_by_row_and_cell_by_cell():
    page = lay_out(["Year", "Best team"], [["1999", "A-League"], ["2000"]], title="a list")
    assert page.words == ["a", "list", "Year", "Best", "team", "1999", "A-League", "2000"]
    assert page.boxes.shape == (8 * 4,)
    assert page.boxes.min() >= 0
    assert page.boxes.max() <= 1


def test_a_box_is_where_a_hand_computed_layout_has_it():
    page = lay_out(["A"], [["B"]])
    bold, plain = widths(FAMILY, True)["A"], widths(FAMILY, False)["B"]
    side = max(bold, plain, 1.0)
    line = ASCENT + DESCENT + PADDING  # a row of one line: its box with half a padding above and below
    width, height = 2 * MARGIN + 2 * PADDING + side, 2 * MARGIN + 2 * line
    top = MARGIN + line + PADDING / 2
    left = MARGIN + PADDING
    expected = [left / width, top / height, (left + plain) / width, (top + ASCENT + DESCENT) / height]
    np.testing.assert_allclose(page.boxes[4:], expected, rtol=1e-5)


def test_long_cells_wrap_and_long_words_widen_their_column():
    page = lay_out(["x"], [["word " * 60], ["W" * 40]])
    wrapped = [w for w in page.placed if w.text == "word"]
    longest = widths(FAMILY, False)["W" * 40]
    assert len({w.baseline for w in wrapped}) > 1
    assert longest > WIDEST
    assert max(w.right for w in wrapped) <= MARGIN + PADDING + longest + 1e-6
    steps = sorted({w.baseline for w in wrapped})
    np.testing.assert_allclose(np.diff(steps), LEADING)


def test_the_ink_is_in_the_boxes():
    page = lay_out(["Name", "Value"], [["first", "12,345"], ["second", "6,789.00"]])
    size = 500
    dark = np.asarray(Image.open(io.BytesIO(page.draw(size)))) < 100
    allowed = np.zeros_like(dark)
    for left, top, right, bottom in page.boxes.reshape(-1, 4) * size:
        box = (slice(int(top) - 2, int(bottom) + 3), slice(int(left) - 4, int(right) + 5))
        assert dark[box].any()
        allowed[box] = True
    assert not (dark & ~allowed).any()


def test_empty_cells_and_huge_tables_are_drawn_too():
    assert len(lay_out(["", ""], [["", ""]]).draw(32)) > 50
    huge = lay_out([f"c{i}" for i in range(30)], [[str(r)] * 30 for r in range(500)])
    assert Image.open(io.BytesIO(huge.draw(64))).size == (64, 64)
