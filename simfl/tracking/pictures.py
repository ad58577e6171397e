"""The picture beside a sample prediction."""

from __future__ import annotations

import io
from typing import Any

from PIL import Image

SIDE = 512  # pixels of the longer side


def picture(split: Any, row: int) -> Image.Image | None:
    """An example's image, or the page it asks about, at most 512 pixels wide and high; None where there is none."""
    table, place = split.examples, row
    if split.documents is not None:
        table, place = split.documents, split.examples["document"][row].as_py()
    column = next((name for name in ("image", "image_path") if name in table.column_names), None)
    found = None if column is None else table[column][place].as_py()
    if found is None:
        return None
    image = Image.open(io.BytesIO(found) if isinstance(found, bytes) else found).convert("RGB")
    image.thumbnail((SIDE, SIDE))
    return image
