"""A page before it is drawn: words where they stand, lines, bars and curves. It travels to other processes as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image, ImageDraw

from simfl.data.base import Split
from simfl.data.readers.table_page import TablePage, Word, squeezed

DRAW = "simfl.data.benchmarks.multi_docqa.sheet:draw_all"
GREY, BLACK = 150, 30


@dataclass(frozen=True)
class Mark:
    """A bar between two corners, or a curve through points with a dot on each; in ems from the upper left."""

    kind: str  # bar or curve
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Sheet:
    """One page."""

    page: TablePage
    marks: tuple[Mark, ...] = ()

    def draw(self, size: int) -> bytes:
        """A grey PNG squeezed to `size` x `size` pixels; marks lie under the words."""
        scale = self.page.scale(size)
        ink = self.page.printed(scale)
        under = Image.new("L", ink.shape[::-1], 255)
        pencil = ImageDraw.Draw(under)
        for mark in self.marks:
            _mark(pencil, mark, scale)
        return squeezed(np.minimum(ink, np.asarray(under)), size)


def _mark(pencil: ImageDraw.ImageDraw, mark: Mark, scale: float) -> None:
    points = [(x * scale, y * scale) for x, y in mark.points]
    if mark.kind == "bar":
        (left, top), (right, bottom) = points
        pencil.rectangle((left, top, max(left + 1, right), bottom), fill=GREY)
        return
    pencil.line(points, fill=BLACK, width=max(1, round(0.12 * scale)))
    dot = 0.25 * scale
    for x, y in points:
        pencil.ellipse((x - dot, y - dot, x + dot, y + dot), fill=BLACK)


def job(sheets: Sequence[Sheet], size: int) -> dict[str, Any]:
    """What `draw_all` is told."""
    return {"size": size, "sheets": [_told(sheet) for sheet in sheets]}


def _told(sheet: Sheet) -> list[Any]:
    page = sheet.page
    words = [(w.text, w.left, w.right, w.baseline, w.bold) for w in page.placed]
    return [words, page.lines, page.width, page.height, [(mark.kind, mark.points) for mark in sheet.marks]]


def draw_all(told: Mapping[str, Any]) -> Split:
    """The pictures of the pages of a job, as the column `image`."""
    return Split(pa.table({"image": [_sheet(sheet).draw(told["size"]) for sheet in told["sheets"]]}))


def _sheet(told: Sequence[Any]) -> Sheet:
    words, lines, width, height, marks = told
    page = TablePage(tuple(Word(*word) for word in words), tuple(lines), width, height)
    return Sheet(page, tuple(Mark(kind, tuple((x, y) for x, y in points)) for kind, points in marks))
