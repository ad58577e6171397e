"""Contact sheets: one image that shows some examples of each group of a data set."""

from __future__ import annotations

import io
from collections.abc import Sequence

import pyarrow as pa
from PIL import Image, ImageDraw

from simfl.data.base import Split
from simfl.data.io.images import encode_png

COLUMNS, ROWS = 6, 6  # images on a sheet
CELL = 224  # pixels: largest side of an image
LINE, LINES = 13, 3  # pixels of a line, and lines of text below an image
LETTERS = 36  # of a line, at most


def contact_sheet(split: Split, group: str) -> bytes:
    """Draw examples of each value of the column `group`, each with its first question or its text, as a PNG."""
    rows = _sample_rows(split, group)
    sizes = [_image(split, row).size for row in rows]
    cell = min(CELL, max(max(size) for size in sizes) * 2)
    height = min(cell, max(round(h * min(1, cell / w)) if w > cell else h for w, h in sizes)) + LINE * LINES + 6
    sheet = Image.new("RGB", (COLUMNS * (cell + 8), -(-len(rows) // COLUMNS) * height), "white")
    draw = ImageDraw.Draw(sheet)
    for number, row in enumerate(rows):
        left, top = number % COLUMNS * (cell + 8) + 4, number // COLUMNS * height + 2
        image = _image(split, row).convert("RGB")
        image.thumbnail((cell, cell))
        sheet.paste(image, (left, top))
        for line, text in enumerate(_caption(split.examples, row, group)):
            draw.text((left, top + height - LINE * (LINES - line) - 5), text[:LETTERS], fill="black")
    return encode_png(sheet)


def _sample_rows(split: Split, group: str) -> list[int]:
    """Return rows of examples: equally many for each value as far as they fit, no two of one document."""
    values = split.examples[group].to_pylist()
    names = sorted(set(values))
    per_value = max(1, COLUMNS * ROWS // len(names))
    documents = split.examples["document"].to_pylist() if split.documents is not None else list(range(len(values)))
    sampled: list[int] = []
    for name in names[: COLUMNS * ROWS]:
        first: dict[int, int] = {}  # document -> its first row
        for row, value in enumerate(values):
            if value == name:
                first.setdefault(documents[row], row)
        rows = list(first.values())
        sampled += rows[:: max(1, len(rows) // per_value)][:per_value]
    return sampled


def _image(split: Split, row: int) -> Image.Image:
    if split.documents is None:
        encoded = split.examples["image"][row].as_py()
    else:
        encoded = split.documents["image"][split.examples["document"][row].as_py()].as_py()
    return Image.open(io.BytesIO(encoded))


def _caption(examples: pa.Table, row: int, group: str) -> Sequence[str]:
    example = examples.slice(row, 1).to_pylist()[0]
    if "question" not in example:
        return (str(example[group]), str(example.get("text") or example.get("class")))
    question, answer = example["question"], " / ".join(example["answers"])
    return question[:LETTERS], question[LETTERS:], f"{example[group]}: {answer}"
