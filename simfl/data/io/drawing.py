"""What drawn benchmarks share: encoding a picture, and a sheet that shows some of a data set's pictures at a glance."""

from __future__ import annotations

import io
from collections.abc import Sequence

import pyarrow as pa
from PIL import Image, ImageDraw

from simfl.data.base import Split

COLUMNS, ROWS = 6, 6  # pictures on a sheet
CELL = 224  # pixels: what a picture fits into, before its lines of text
LINE, LINES = 13, 3  # pixels, and lines of text below a picture
LETTERS = 36  # of a line, at most


def png(image: Image.Image) -> bytes:
    """A PNG that is quick to write."""
    buffer = io.BytesIO()
    image.save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def jpeg(image: Image.Image, quality: int = 88) -> bytes:
    """A JPEG, smaller than PNG for noisy pictures."""
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


def contact_sheet(split: Split, group: str) -> bytes:
    """A PNG of pictures evenly drawn from each value of a column, each with its first question or its text below."""
    rows = _chosen(split, group)
    sizes = [_picture(split, row).size for row in rows]
    cell = min(CELL, max(max(size) for size in sizes) * 2)
    height = min(cell, max(round(h * min(1, cell / w)) if w > cell else h for w, h in sizes)) + LINE * LINES + 6
    sheet = Image.new("RGB", (COLUMNS * (cell + 8), -(-len(rows) // COLUMNS) * height), "white")
    pencil = ImageDraw.Draw(sheet)
    for place, row in enumerate(rows):
        left, top = place % COLUMNS * (cell + 8) + 4, place // COLUMNS * height + 2
        picture = _picture(split, row).convert("RGB")
        picture.thumbnail((cell, cell))
        sheet.paste(picture, (left, top))
        for number, text in enumerate(_caption(split.examples, row, group)):
            pencil.text((left, top + height - LINE * (LINES - number) - 5), text[:LETTERS], fill="black")
    return png(sheet)


def _chosen(split: Split, group: str) -> list[int]:
    """Rows of examples, as many of each value of the column as fit, each of another document."""
    values = split.examples[group].to_pylist()
    names = sorted(set(values))
    each = max(1, COLUMNS * ROWS // len(names))
    documents = split.examples["document"].to_pylist() if split.documents is not None else list(range(len(values)))
    chosen: list[int] = []
    for name in names[: COLUMNS * ROWS]:
        first: dict[int, int] = {}  # of each document
        for row, value in enumerate(values):
            if value == name:
                first.setdefault(documents[row], row)
        rows = list(first.values())
        chosen += rows[:: max(1, len(rows) // each)][:each]
    return chosen


def _picture(split: Split, row: int) -> Image.Image:
    if split.documents is None:
        encoded = split.examples["image"][row].as_py()
    else:
        encoded = split.documents["image"][split.examples["document"][row].as_py()].as_py()
    return Image.open(io.BytesIO(encoded))


def _caption(examples: pa.Table, row: int, group: str) -> Sequence[str]:
    told = examples.slice(row, 1).to_pylist()[0]
    if "question" not in told:
        return (str(told[group]), str(told.get("text") or told.get("class")))
    question, answer = told["question"], " / ".join(told["answers"])
    return question[:LETTERS], question[LETTERS:], f"{told[group]}: {answer}"
