"""Pages before drawing: words, rules, bars and curves with positions, and questions. Processes get pages as JSON."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image, ImageDraw

from simfl.data.base import Split
from simfl.data.io.table_page import PlacedWord, TablePage, encode_page

DRAW = "simfl.data.benchmarks.multi_docqa.page:draw_pages"
GREY, BLACK = 150, 30
NUMBER = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?")


@dataclass(frozen=True)
class PageQuestion:
    """One question about a page and its correct answers."""

    field: str  # kind of question
    question: str
    answers: tuple[str, ...]


def parse_number(text: str) -> Decimal | None:
    """Return the number in a cell, or None if it holds none."""
    return Decimal(text) if NUMBER.fullmatch(text) else None


def format_number(value: Decimal) -> str:
    """Format a number without trailing zeros: with 4 decimals below 1, 3 below 100, else 1."""
    decimals = 4 if abs(value) < 1 else 3 if abs(value) < 100 else 1
    text = f"{round(value, decimals):f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


@dataclass(frozen=True)
class Mark:
    """A bar between two corners, or a curve through points with a dot on each; in ems from the upper left."""

    kind: str  # bar or curve
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class MarkedPage:
    """One page with the marks of its chart, if it has one."""

    page: TablePage
    marks: tuple[Mark, ...] = ()

    def draw(self, size: int) -> bytes:
        """Draw the page as a grey PNG resized to `size` x `size` pixels; marks are below the words."""
        scale = self.page.scale(size)
        ink = self.page.render(scale)
        under = Image.new("L", ink.shape[::-1], 255)
        canvas = ImageDraw.Draw(under)
        for mark in self.marks:
            _draw_mark(canvas, mark, scale)
        return encode_page(np.minimum(ink, np.asarray(under)), size)


def _draw_mark(canvas: ImageDraw.ImageDraw, mark: Mark, scale: float) -> None:
    points = [(x * scale, y * scale) for x, y in mark.points]
    if mark.kind == "bar":
        (left, top), (right, bottom) = points
        canvas.rectangle((left, top, max(left + 1, right), bottom), fill=GREY)
        return
    canvas.line(points, fill=BLACK, width=max(1, round(0.12 * scale)))
    dot = 0.25 * scale
    for x, y in points:
        canvas.ellipse((x - dot, y - dot, x + dot, y + dot), fill=BLACK)


def drawing_task(pages: Sequence[MarkedPage], size: int) -> dict[str, Any]:
    """Return the argument of `draw_pages` as JSON values."""
    return {"size": size, "pages": [_encode(page) for page in pages]}


def draw_pages(task: Mapping[str, Any]) -> Split:
    """Draw the pages of a task; the examples of the result have one column, `image`."""
    return Split(pa.table({"image": [_decode(page).draw(task["size"]) for page in task["pages"]]}))


def _encode(marked: MarkedPage) -> list[Any]:
    page = marked.page
    words = [(w.text, w.left, w.right, w.baseline, w.bold) for w in page.placed]
    return [words, page.lines, page.width, page.height, [(mark.kind, mark.points) for mark in marked.marks]]


def _decode(encoded: Sequence[Any]) -> MarkedPage:
    words, lines, width, height, marks = encoded
    page = TablePage(tuple(PlacedWord(*word) for word in words), tuple(lines), width, height)
    return MarkedPage(page, tuple(Mark(kind, tuple((x, y) for x, y in points)) for kind, points in marks))
