"""Pages of a PDF by pypdfium2: their words with boxes, their picture, what is attached, the outline.

pypdfium2 is needed only where PDFs are read.
"""

from __future__ import annotations

import importlib
import io
import threading
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from simfl.errors import DataError

ONE_AT_A_TIME = threading.RLock()  # PDFium is not safe between threads
BROKEN_LINE = "\x02"  # PDFium's sign for a hyphen at the end of a line
Corners = tuple[float, float, float, float]  # left, bottom, right, top of a character in points, from the lower left


class UnreadablePdf(Exception):
    """The file is no PDF, is broken or is locked."""


@dataclass(frozen=True)
class Text:
    """The text layer of a page."""

    words: list[str]
    boxes: np.ndarray  # float32 [4n], flat: left, top, right, bottom in [0, 1]


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """The document, open. UnreadablePdf if it cannot be; DataError if pypdfium2 is not installed."""
    pdfium = _pdfium()
    with ONE_AT_A_TIME:
        try:
            document = pdfium.PdfDocument(path)
            len(document)
        except (pdfium.PdfiumError, OSError) as error:
            raise UnreadablePdf(str(error)) from error
        try:
            yield document
        finally:
            document.close()


def _pdfium() -> Any:
    try:
        return importlib.import_module("pypdfium2")
    except ImportError as error:
        raise DataError("data: reading PDFs needs pypdfium2; pip install 'simfl[readers]'") from error


def words(page: Any) -> Text:
    """The words of a page in the order of its text layer. A word ends at a space, at a jump or where the line ends."""
    raw = _pdfium().raw
    layer = page.get_textpage()
    try:
        chars = [chr(raw.FPDFText_GetUnicode(layer, i) or 32) for i in range(layer.count_chars())]
        chars = ["-" if char == BROKEN_LINE else char for char in chars]
        corners = [None if _blank(char) else layer.get_charbox(i) for i, char in enumerate(chars)]
        sizes = [0.0 if c is None else _size(layer.get_charbox(i, loose=True)) for i, c in enumerate(corners)]
    finally:
        layer.close()
    spans = list(_spans(corners, sizes))
    boxes = np.array([_around([c for c in corners[a:b] if c is not None]) for a, b in spans]).reshape(-1, 4)
    found = [unicodedata.normalize("NFC", "".join(chars[a:b])) for a, b in spans]
    return Text(found, _upright(page, boxes))


def _blank(char: str) -> bool:
    return char.isspace() or not char.isprintable()


def _size(loose: Corners) -> float:
    """The size of a letter's font on the page; its own box is thin for a dot or a dash."""
    return max(loose[2] - loose[0], loose[3] - loose[1])


def _spans(corners: list[Corners | None], sizes: list[float]) -> Iterator[tuple[int, int]]:
    """Where each word begins and ends among the characters."""
    start, before = None, None
    for i, here in enumerate([*corners, None]):
        if start is not None and (here is None or before is None or _jumps(before, here, sizes[i - 1])):
            yield start, i
            start = None
        if start is None and here is not None:
            start = i
        before = here


def _jumps(before: Corners, here: Corners, size: float) -> bool:
    """Whether a character of this font size stands too far from the one before to be of the same word."""
    across = max(here[0] - before[2], before[0] - here[2])
    along = max(here[1] - before[3], before[1] - here[3])
    return across > size / 2 or along > size


def _around(boxes: list[Corners]) -> tuple[float, ...]:
    left, bottom, right, top = zip(*boxes, strict=True)
    return min(left), min(bottom), max(right), max(top)


def _upright(page: Any, boxes: np.ndarray) -> np.ndarray:
    """Boxes [n, 4] in the page's own points as shares of the page as it is shown: cropped, and turned."""
    left, bottom, right, top = page.get_bbox()
    x, y = (boxes[:, ::2] - left) / (right - left), (boxes[:, 1::2] - bottom) / (top - bottom)
    turn = page.get_rotation() // 90 % 4
    for _ in range(turn):  # a quarter clockwise: what was up is right
        x, y = y, 1 - x
    shown = np.stack([x.min(1), 1 - y.max(1), x.max(1), 1 - y.min(1)], 1) if len(boxes) else boxes
    return np.clip(shown, 0.0, 1.0).astype(np.float32).reshape(-1)


def draw(page: Any, size: int) -> bytes:
    """The page squeezed to `size` x `size` pixels, as a JPEG."""
    width, height = page.get_size()
    scale = 2 * size / max(1.0, min(width, height))  # drawn larger, then averaged: thin lines stay
    picture = page.render(scale=min(scale, 4000 / max(width, height))).to_pil()
    out = io.BytesIO()
    picture.convert("RGB").resize((size, size), resample=3).save(out, format="JPEG", quality=90)
    return out.getvalue()


def attachments(document: Any) -> Iterator[tuple[str, bytes]]:
    """The name and content of each embedded file."""
    for i in range(document.count_attachments()):
        attachment = document.get_attachment(i)
        yield attachment.get_name(), bytes(attachment.get_data())


def outline(document: Any) -> Iterator[tuple[str, int]]:
    """The headings of the document's own outline with the page (from 0) that each points to."""
    for entry in document.get_toc():
        target = entry.get_dest()
        page = None if target is None else target.get_index()
        if page is not None and 0 <= page < len(document):
            yield " ".join(entry.get_title().split()), page
