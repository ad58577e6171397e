"""Rendering of tables as pages: words with boxes, and an image of the printed table.

Columns are as wide as their widest cell up to a limit, beyond which text wraps. The layout is in ems of one font whose
widths are read from its file, so the boxes are the same on every machine.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

from simfl.data.benchmarks.fonts import face, glyphs, widths

FAMILY = "PT Sans Narrow"
MARGIN, PADDING, LEADING = 1.0, 0.5, 1.25  # ems
MAX_COLUMN_WIDTH = 18.0  # ems, unless a single word is longer
ASCENT, DESCENT = 0.95, 0.25  # ems of a line's box above and below its baseline
OVERSAMPLING = 1.6  # a page is drawn this much larger, then averaged down
MAX_SIDE = 4000  # pixels of the page before it is resized


@dataclass(frozen=True)
class PlacedWord:
    """A word at its position, in ems from the upper left corner."""

    text: str
    left: float
    right: float
    baseline: float
    bold: bool


@dataclass(frozen=True)
class TablePage:
    """The layout of a table on a page."""

    placed: tuple[PlacedWord, ...]
    lines: tuple[float, ...]  # ems from the top of each horizontal rule
    width: float  # ems
    height: float

    @property
    def words(self) -> list[str]:
        """The words, row by row and cell by cell."""
        return [word.text for word in self.placed]

    @property
    def boxes(self) -> np.ndarray:
        """Boxes of the words, float32 [4n], flat: left, top, right, bottom as shares of the page."""
        corners = [(w.left, w.baseline - ASCENT, w.right, w.baseline + DESCENT) for w in self.placed]
        sides = [self.width, self.height, self.width, self.height]
        return np.clip(np.array(corners).reshape(-1, 4) / sides, 0.0, 1.0).astype(np.float32).reshape(-1)

    def draw(self, size: int) -> bytes:
        """Draw the page as a grey PNG of `size` x `size` pixels."""
        return encode_page(self.render(self.scale(size)), size)

    def scale(self, size: int) -> float:
        """Return the pixels an em at which to render a page that will be resized to `size` x `size` pixels."""
        return min(OVERSAMPLING * size / (self.width * self.height) ** 0.5, MAX_SIDE / max(self.width, self.height))

    def render(self, scale: float) -> np.ndarray:
        """Render the page at so many pixels an em: uint8 [h, w], 255 is white."""
        ink = np.full((max(1, round(self.height * scale)), max(1, round(self.width * scale))), 255, np.uint8)
        for y in self.lines:
            ink[min(round(y * scale), len(ink) - 1)] = 160
        for word in self.placed:
            _draw_word(ink, word, scale)
        return ink


def encode_page(ink: np.ndarray, size: int) -> bytes:
    """Encode a rendered page as a grey PNG of `size` x `size` pixels."""
    out = io.BytesIO()
    Image.fromarray(ink).resize((size, size), Image.Resampling.BOX).save(out, format="PNG", compress_level=3)
    return out.getvalue()


def _draw_word(ink: np.ndarray, word: PlacedWord, scale: float) -> None:
    letters = glyphs(FAMILY, word.bold, max(4, round(scale)))
    x, y = word.left * scale, round(word.baseline * scale)
    for char in word.text:
        mask, right, down, advance = letters[char]
        top, left = max(0, y + down), max(0, int(x + 0.5) + right)
        under = ink[top : top + mask.shape[0], left : left + mask.shape[1]]
        np.minimum(under, 255 - mask[: under.shape[0], : under.shape[1]], out=under)
        x += advance * scale


def lay_out_table(header: Sequence[str], rows: Sequence[Sequence[str]], title: str = "") -> TablePage:
    """Lay out a table. Rows may be shorter than the header. DataError if the font is not installed."""
    face(FAMILY, bold=False)
    table = [list(header), *(list(row) for row in rows)]
    num_columns = max(map(len, table))
    sides = [_column_width(table, column) for column in range(num_columns)]
    lefts = MARGIN + np.cumsum([0.0, *(side + 2 * PADDING for side in sides)])
    placed: list[PlacedWord] = []
    y = MARGIN
    if title:
        y = _place_cell(placed, title, MARGIN, y, float(max(lefts[-1] - MARGIN, MAX_COLUMN_WIDTH)), bold=True) + PADDING
    lines = [y]
    for number, row in enumerate(table):
        bottoms = [
            _place_cell(placed, text, float(lefts[c]) + PADDING, y + PADDING / 2, sides[c], bold=number == 0)
            for c, text in enumerate(row)
        ]
        y = max(bottoms, default=y + LEADING) + PADDING / 2
        lines.append(y)
    right = max([float(lefts[-1]), *(word.right for word in placed)])
    return TablePage(tuple(placed), tuple(lines), right + MARGIN, y + MARGIN)


def _column_width(table: list[list[str]], column: int) -> float:
    """Return the width of a column in ems: its widest cell up to the limit, or its widest word."""
    width, longest = 1.0, 1.0
    for number, row in enumerate(table):
        if column < len(row):
            em = widths(FAMILY, number == 0)
            width = max(width, em[" ".join(row[column].split())])
            longest = max([longest, *(em[word] for word in row[column].split())])
    return max(min(width, MAX_COLUMN_WIDTH), longest)


def _place_cell(placed: list[PlacedWord], text: str, left: float, top: float, width: float, bold: bool) -> float:
    """Append the words of a cell to `placed`, wrapped to its width; return its bottom in ems from the top."""
    em = widths(FAMILY, bold)
    x, baseline = left, top + ASCENT
    for word in text.split():
        if x > left and x + em[word] > left + width + 1e-9:
            x, baseline = left, baseline + LEADING
        placed.append(PlacedWord(word, x, x + em[word], baseline, bold))
        x += em[word] + em[" "]
    return baseline + DESCENT
