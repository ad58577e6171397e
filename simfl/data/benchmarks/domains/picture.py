"""Drawing of one centred symbol on a square picture, shared by emoji and digits."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from simfl.errors import DataError


class DomainPicture(NamedTuple):
    """One picture with its domain and class."""

    domain: str
    class_name: str
    key: str  # emoji: the code, equal for drawings of the same thing; digits: the number within their source
    image: Image.Image  # RGB


@cache
def load_font(path: Path, size: int, weight: str = "") -> ImageFont.FreeTypeFont:
    """Load a font at a size in pixels, with basic layout; `weight` is a named weight of a variable font."""
    font = ImageFont.truetype(str(path), size, layout_engine=ImageFont.Layout.BASIC)
    if weight:
        font.set_variation_by_name(weight)
    return font


def draw_text(letters: str, font: ImageFont.FreeTypeFont, coloured: bool = False) -> Image.Image:
    """Draw text in black, or in the font's own colours, on a transparent ground, cropped to its ink.

    Raises:
        DataError: The font draws nothing for these letters.
    """
    side = 2 * int(font.size) * max(1, len(letters))
    image = Image.new("RGBA", (side, side), (0, 0, 0, 0))
    origin = (font.size // 2, font.size // 2)
    ImageDraw.Draw(image).text(origin, letters, font=font, fill=(0, 0, 0, 255), embedded_color=coloured)
    box = image.getchannel("A").getbbox()
    if box is None:
        raise DataError(f"data: {Path(str(font.path)).name} has no ink for {letters!r}")
    return image.crop(box)


def paste(ink: Image.Image, ground: Image.Image, share: float, right: float = 0.5, down: float = 0.5) -> Image.Image:
    """Paste ink on a square ground.

    `share` is the longer side of the ink over the side of the ground; `right` and `down` divide the remaining space,
    0.5 being the centre.
    """
    side = ground.width
    scale = share * side / max(ink.size)
    width, height = (max(1, round(length * scale)) for length in ink.size)
    small = ink.resize((width, height), Image.Resampling.LANCZOS)
    out = ground.convert("RGB")
    out.paste(small, (round((side - width) * right), round((side - height) * down)), small)
    return out


def recolour(ink: Image.Image, colour: tuple[int, int, int]) -> Image.Image:
    """Return the same shape in one colour."""
    out = Image.new("RGBA", ink.size, (*colour, 255))
    out.putalpha(ink.getchannel("A"))
    return out


def smooth_noise(random: np.random.Generator, side: int, cells: int) -> np.ndarray:
    """Return smooth noise [side, side] in [-1, 1], interpolated from `cells` x `cells` random values."""
    coarse = Image.fromarray(random.uniform(-1, 1, (cells, cells)).astype(np.float32))
    return np.asarray(coarse.resize((side, side), Image.Resampling.BICUBIC))
