"""Tables as pages: words with boxes, and the picture of a printed table.

Columns are as wide as their widest cell up to a limit, beyond which text wraps. Everything is laid out in ems of one
font whose widths are read from its file, so the boxes are the same on every machine.
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
WIDEST = 18.0  # of a column, unless a single word is longer
ASCENT, DESCENT = 0.95, 0.25  # of a line's box above and below its baseline
FINE = 1.6  # a page is drawn this much larger, then averaged down
LARGEST = 4000  # pixels of a side while it is drawn


@dataclass(frozen=True)
class Word:
    """A word where it stands, in ems from the upper left."""

    text: str
    left: float
    right: float
    baseline: float
    bold: bool


@dataclass(frozen=True)
class TablePage:
    """A table laid out."""

    placed: tuple[Word, ...]
    lines: tuple[float, ...]  # where a line is ruled across, in ems from the top
    width: float  # ems
    height: float

    @property
    def words(self) -> list[str]:
        """The words, row by row and cell by cell."""
        return [word.text for word in self.placed]

    @property
    def boxes(self) -> np.ndarray:
        """Float32 [4n], flat: left, top, right, bottom as shares of the page."""
        corners = [(w.left, w.baseline - ASCENT, w.right, w.baseline + DESCENT) for w in self.placed]
        sides = [self.width, self.height, self.width, self.height]
        return np.clip(np.array(corners).reshape(-1, 4) / sides, 0.0, 1.0).astype(np.float32).reshape(-1)

    def draw(self, size: int) -> bytes:
        """A grey PNG squeezed to `size` x `size` pixels."""
        return squeezed(self.printed(self.scale(size)), size)

    def scale(self, size: int) -> float:
        """Pixels an em at which a page is drawn that will be `size` x `size` pixels."""
        return min(FINE * size / (self.width * self.height) ** 0.5, LARGEST / max(self.width, self.height))

    def printed(self, scale: float) -> np.ndarray:
        """The page at so many pixels an em, uint8 [h, w], 255 where it is white."""
        ink = np.full((max(1, round(self.height * scale)), max(1, round(self.width * scale))), 255, np.uint8)
        for y in self.lines:
            ink[min(round(y * scale), len(ink) - 1)] = 160
        for word in self.placed:
            _print(ink, word, scale)
        return ink


def squeezed(ink: np.ndarray, size: int) -> bytes:
    """A drawn page as a grey PNG of `size` x `size` pixels."""
    out = io.BytesIO()
    Image.fromarray(ink).resize((size, size), Image.Resampling.BOX).save(out, format="PNG", compress_level=3)
    return out.getvalue()


def _print(ink: np.ndarray, word: Word, scale: float) -> None:
    letters = glyphs(FAMILY, word.bold, max(4, round(scale)))
    x, y = word.left * scale, round(word.baseline * scale)
    for char in word.text:
        mask, right, down, advance = letters[char]
        top, left = max(0, y + down), max(0, int(x + 0.5) + right)
        under = ink[top : top + mask.shape[0], left : left + mask.shape[1]]
        np.minimum(under, 255 - mask[: under.shape[0], : under.shape[1]], out=under)
        x += advance * scale


def lay_out(header: Sequence[str], rows: Sequence[Sequence[str]], title: str = "") -> TablePage:
    """A table as a page. Rows may be shorter than the header. DataError if the font is not installed."""
    face(FAMILY, bold=False)
    table = [list(header), *(list(row) for row in rows)]
    columns = max(map(len, table))
    sides = [_column(table, column) for column in range(columns)]
    lefts = MARGIN + np.cumsum([0.0, *(side + 2 * PADDING for side in sides)])
    placed: list[Word] = []
    y = MARGIN
    if title:
        y = _cell(placed, title, MARGIN, y, float(max(lefts[-1] - MARGIN, WIDEST)), bold=True) + PADDING
    lines = [y]
    for number, row in enumerate(table):
        bottoms = [
            _cell(placed, text, float(lefts[c]) + PADDING, y + PADDING / 2, sides[c], bold=number == 0)
            for c, text in enumerate(row)
        ]
        y = max(bottoms, default=y + LEADING) + PADDING / 2
        lines.append(y)
    right = max([float(lefts[-1]), *(word.right for word in placed)])
    return TablePage(tuple(placed), tuple(lines), right + MARGIN, y + MARGIN)


def _column(table: list[list[str]], column: int) -> float:
    """The width of a column in ems: its widest cell up to the limit, or its widest word."""
    width, longest = 1.0, 1.0
    for number, row in enumerate(table):
        if column < len(row):
            em = widths(FAMILY, number == 0)
            width = max(width, em[" ".join(row[column].split())])
            longest = max([longest, *(em[word] for word in row[column].split())])
    return max(min(width, WIDEST), longest)


def _cell(placed: list[Word], text: str, left: float, top: float, width: float, bold: bool) -> float:
    """Places the words of a cell in lines that fit its width; where it ends, in ems from the top."""
    em = widths(FAMILY, bold)
    x, baseline = left, top + ASCENT
    for word in text.split():
        if x > left and x + em[word] > left + width + 1e-9:
            x, baseline = left, baseline + LEADING
        placed.append(Word(word, x, x + em[word], baseline, bold))
        x += em[word] + em[" "]
    return baseline + DESCENT
