"""Predictions on their pages: the image of a page, with the words of the answer and of the prediction framed."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from simfl.data.base import Split
from simfl.errors import SimflError
from simfl.images import read_image
from simfl.reports.chart import swatches
from simfl.reports.page import figure, figures
from simfl.reports.results import RunResult
from simfl.runs.tables import TableRow

MAX_PAGES = 8
PAGE_WIDTH = 440.0  # units of a drawn page, as wide as a chart
PIXELS = 880  # of the longer side of the stored image
MAX_SPAN = 16  # words of an answer that are looked for on the page
PREDICTED = "predicted_"
KINDS = ("answer", "prediction")  # colours 0 and 1 of the frames
Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class Page:
    """A page of a data set."""

    words: tuple[str, ...]
    boxes: tuple[Box, ...]  # left, top, right, bottom as shares of the page
    image: bytes | None  # JPEG
    height: float  # of the drawing, PAGE_WIDTH wide


def predictions_on_pages(result: RunResult) -> str:
    """Return the pages of a run's last sampled predictions; empty without pages, or where the data are not here."""
    samples = result.run.samples().to_pylist()
    last = max((sample["step"] for sample in samples), default=0)
    chosen = [sample for sample in samples if sample["step"] == last and sample.get("question")][:MAX_PAGES]
    drawn = []
    for sample in chosen:
        try:
            split = result.whole_run.context.split(sample["split"])
        except (SimflError, OSError):
            return ""
        page = _page_of(split, int(sample["row"]))
        if page is not None:
            drawn.append(_drawn(page, sample))
    return figures(drawn)


def _page_of(split: Split, row: int) -> Page | None:
    if split.documents is None or "document" not in split.examples.column_names:
        return None
    document = split.documents.slice(split.examples["document"][row].as_py(), 1).to_pylist()[0]
    flat = document.get("boxes") or []
    boxes = tuple((flat[i], flat[i + 1], flat[i + 2], flat[i + 3]) for i in range(0, len(flat), 4))
    image, ratio = _image(document)
    return Page(tuple(document.get("words") or ()), boxes, image, PAGE_WIDTH * ratio)


def _image(document: Mapping[str, Any]) -> tuple[bytes | None, float]:
    """Return the image of a page as JPEG, and its height as a multiple of its width."""
    stored = document.get("image") or (Path(document["image_path"]) if document.get("image_path") else None)
    width, height = document.get("width") or 0, document.get("height") or 0
    ratio = height / width if width and height else 2**0.5
    if stored is None:
        return None, ratio
    try:
        image = read_image(stored, "RGB", "a page")
    except SimflError:
        return None, ratio
    image.thumbnail((PIXELS, PIXELS))
    out = io.BytesIO()
    image.save(out, "JPEG", quality=80)
    return out.getvalue(), image.height / image.width


def _drawn(page: Page, sample: TableRow) -> str:
    answers = sample.get("answers") or []
    predicted = next((str(v) for k, v in sample.items() if k.startswith(PREDICTED) and isinstance(v, str)), "")
    texts = {"answer": answers, "prediction": [predicted]}
    frames = [_frames(page, texts[kind], colour) for colour, kind in enumerate(KINDS)]
    picture = "" if page.image is None else _picture(page)
    body = picture + "".join(frames)
    size = f"{PAGE_WIDTH:g} {page.height:.0f}"
    chart = f'<svg viewBox="0 0 {size}" role="img" aria-label="page">{body}</svg>{swatches(KINDS)}'
    note = f"answer: {'; '.join(map(str, answers)) or 'none'}; prediction: {predicted or 'none'}"
    missing = [kind for kind, drawn in zip(KINDS, frames, strict=True) if not drawn and any(texts[kind])]
    return figure(str(sample["question"]), chart, note + "".join(f"; {kind} not found on the page" for kind in missing))


def _picture(page: Page) -> str:
    data = base64.b64encode(page.image or b"").decode()
    place = f'x="0" y="0" width="{PAGE_WIDTH:g}" height="{page.height:.0f}"'
    return f'<image {place} preserveAspectRatio="none" href="data:image/jpeg;base64,{data}"/>'


def _frames(page: Page, texts: Sequence[object], colour: int) -> str:
    """Return a frame around each word of the first place on the page that prints one of the texts."""
    span = next((found for text in texts if (found := find_span(page.words, str(text)))), range(0))
    margin = 1.5 + 2.0 * colour  # frames around equal words stay apart
    parts = []
    for left, top, right, bottom in page.boxes[span.start : span.stop]:
        x, y = left * PAGE_WIDTH - margin, top * page.height - margin
        size = (right - left) * PAGE_WIDTH + 2 * margin, (bottom - top) * page.height + 2 * margin
        at = f'x="{x:.1f}" y="{y:.1f}" width="{size[0]:.1f}" height="{size[1]:.1f}"'
        parts.append(f'<rect {at} class="line c{colour}"><title>{escape(KINDS[colour])}</title></rect>')
    return "".join(parts)


def find_span(words: Sequence[str], text: str) -> range:
    """Return the first consecutive words that print a text, ignoring case and white space; empty without any."""
    wanted = "".join(text.split()).casefold()
    parts = ["".join(word.split()).casefold() for word in words]
    for start in range(len(parts)) if wanted else ():
        joined = ""
        for stop in range(start, min(start + MAX_SPAN, len(parts))):
            joined += parts[stop]
            if joined == wanted:
                return range(start, stop + 1)
            if not wanted.startswith(joined):
                break
    return range(0)
