"""Reading of PDFs with pypdfium2: text with boxes, rendered pages, attachments and the outline.

pypdfium2 is imported only when a PDF is opened.
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

PDFIUM_LOCK = threading.RLock()  # PDFium is not thread-safe
LINE_END_HYPHEN = "\x02"  # PDFium's code for a hyphen at the end of a line
Corners = tuple[float, float, float, float]  # left, bottom, right, top of a character in points, from the lower left
Document = Any  # pypdfium2.PdfDocument
Page = Any  # pypdfium2.PdfPage


class UnreadablePdf(Exception):
    """The file is not a PDF, is damaged or is encrypted."""


@dataclass(frozen=True)
class PageText:
    """Text layer of a page."""

    words: list[str]
    boxes: np.ndarray  # float32 [4n], flat: left, top, right, bottom in [0, 1]


@contextmanager
def open_pdf(path: Path) -> Iterator[Document]:
    """Open a PDF for the block; DataError if pypdfium2 is not installed.

    Raises:
        UnreadablePdf: The file cannot be opened, or PDFium cannot read a page within the block.
    """
    pdfium = _pdfium()
    with PDFIUM_LOCK:
        try:
            document = pdfium.PdfDocument(path)
            len(document)
        except (pdfium.PdfiumError, OSError) as error:
            raise UnreadablePdf(str(error)) from error
        try:
            yield document
        except pdfium.PdfiumError as error:
            raise UnreadablePdf(str(error)) from error
        finally:
            document.close()


def _pdfium() -> Any:
    try:
        return importlib.import_module("pypdfium2")
    except ImportError as error:
        raise DataError("data: reading PDFs needs pypdfium2; pip install 'simfl[readers]'") from error


def extract_text(page: Page) -> PageText:
    """Return the words of a page in the order of its text layer.

    A word ends at white space, at a gap or at the end of a line.
    """
    raw = _pdfium().raw
    layer = page.get_textpage()
    try:
        chars = [chr(raw.FPDFText_GetUnicode(layer, i) or 32) for i in range(layer.count_chars())]
        chars = ["-" if char == LINE_END_HYPHEN else char for char in chars]
        corners = [None if _is_blank(char) else layer.get_charbox(i) for i, char in enumerate(chars)]
        sizes = [0.0 if c is None else _font_size(layer.get_charbox(i, loose=True)) for i, c in enumerate(corners)]
    finally:
        layer.close()
    spans = list(_word_spans(corners, sizes))
    boxes = np.array([_enclosing([c for c in corners[a:b] if c is not None]) for a, b in spans]).reshape(-1, 4)
    words = [unicodedata.normalize("NFC", "".join(chars[a:b])) for a, b in spans]
    return PageText(words, _relative_boxes(page, boxes))


def _is_blank(char: str) -> bool:
    return char.isspace() or not char.isprintable()


def _font_size(loose: Corners) -> float:
    """Return the font size from a character's loose box; its tight box is thin for a dot or a dash."""
    return max(loose[2] - loose[0], loose[3] - loose[1])


def _word_spans(corners: list[Corners | None], sizes: list[float]) -> Iterator[tuple[int, int]]:
    """Yield the first character of each word and the one after its last."""
    start, before = None, None
    for i, here in enumerate([*corners, None]):
        if start is not None and (here is None or before is None or _is_gap(before, here, sizes[i - 1])):
            yield start, i
            start = None
        if start is None and here is not None:
            start = i
        before = here


def _is_gap(before: Corners, here: Corners, size: float) -> bool:
    """Return True if two characters of this font size are too far apart to belong to one word."""
    across = max(here[0] - before[2], before[0] - here[2])
    along = max(here[1] - before[3], before[1] - here[3])
    return across > size / 2 or along > size


def _enclosing(boxes: list[Corners]) -> tuple[float, ...]:
    left, bottom, right, top = zip(*boxes, strict=True)
    return min(left), min(bottom), max(right), max(top)


def _relative_boxes(page: Page, boxes: np.ndarray) -> np.ndarray:
    """Convert boxes [n, 4] from points to shares of the page as displayed, that is cropped and rotated."""
    left, bottom, right, top = page.get_bbox()
    x, y = (boxes[:, ::2] - left) / (right - left), (boxes[:, 1::2] - bottom) / (top - bottom)
    num_turns = page.get_rotation() // 90 % 4
    for _ in range(num_turns):  # a quarter turn clockwise: up becomes right
        x, y = y, 1 - x
    shown = np.stack([x.min(1), 1 - y.max(1), x.max(1), 1 - y.min(1)], 1) if len(boxes) else boxes
    return np.clip(shown, 0.0, 1.0).astype(np.float32).reshape(-1)


def render_page(page: Page, size: int) -> bytes:
    """Render a page, resized to `size` x `size` pixels, as a JPEG."""
    width, height = page.get_size()
    scale = 2 * size / max(1.0, min(width, height))  # rendered larger, then averaged, so that thin lines stay visible
    image = page.render(scale=min(scale, 4000 / max(width, height))).to_pil()
    out = io.BytesIO()
    image.convert("RGB").resize((size, size), resample=3).save(out, format="JPEG", quality=90)
    return out.getvalue()


def read_attachments(document: Document) -> Iterator[tuple[str, bytes]]:
    """Yield the name and content of each embedded file."""
    for i in range(document.count_attachments()):
        attachment = document.get_attachment(i)
        yield attachment.get_name(), bytes(attachment.get_data())


def read_outline(document: Document) -> Iterator[tuple[str, int]]:
    """Yield each heading of the document's outline and the page (from 0) that it points to."""
    for entry in document.get_toc():
        target = entry.get_dest()
        page = None if target is None else target.get_index()
        if page is not None and 0 <= page < len(document):
            yield " ".join(entry.get_title().split()), page
