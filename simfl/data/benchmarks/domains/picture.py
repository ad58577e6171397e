"""What both kinds of pictures share: fonts, ink in the middle of a square."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from simfl.errors import DataError


class Drawn(NamedTuple):
    """One picture and where it belongs."""

    domain: str
    kind: str  # the class
    key: str  # what it shows: a drawing of the same thing, or a digit of the same source, has the same key
    image: Image.Image  # RGB


@cache
def font(path: Path, size: int, weight: str = "") -> ImageFont.FreeTypeFont:
    """A font in pixels, laid out in the basic way; `weight` is a named one of a variable font."""
    found = ImageFont.truetype(str(path), size, layout_engine=ImageFont.Layout.BASIC)
    if weight:
        found.set_variation_by_name(weight)
    return found


def text(letters: str, face: ImageFont.FreeTypeFont, coloured: bool = False) -> Image.Image:
    """The text in black (or a colour font's own colours) on nothing, cut to its ink. DataError if there is none."""
    side = 2 * int(face.size) * max(1, len(letters))
    image = Image.new("RGBA", (side, side), (0, 0, 0, 0))
    at = (face.size // 2, face.size // 2)
    ImageDraw.Draw(image).text(at, letters, font=face, fill=(0, 0, 0, 255), embedded_color=coloured)
    box = image.getchannel("A").getbbox()
    if box is None:
        raise DataError(f"data: {Path(str(face.path)).name} has no ink for {letters!r}")
    return image.crop(box)


def centred(ink: Image.Image, ground: Image.Image, share: float, right: float = 0.5, down: float = 0.5) -> Image.Image:
    """The ink on a square ground, its longer side a share of the ground's, at these shares of the room that is left."""
    side = ground.width
    scale = share * side / max(ink.size)
    width, height = (max(1, round(length * scale)) for length in ink.size)
    small = ink.resize((width, height), Image.Resampling.LANCZOS)
    out = ground.convert("RGB")
    out.paste(small, (round((side - width) * right), round((side - height) * down)), small)
    return out


def in_colour(ink: Image.Image, colour: tuple[int, int, int]) -> Image.Image:
    """The same shape in one colour."""
    out = Image.new("RGBA", ink.size, (*colour, 255))
    out.putalpha(ink.getchannel("A"))
    return out


def smooth(random: np.random.Generator, side: int, cells: int) -> np.ndarray:
    """Smooth noise [side, side] in [-1, 1]."""
    coarse = Image.fromarray(random.uniform(-1, 1, (cells, cells)).astype(np.float32))
    return np.asarray(coarse.resize((side, side), Image.Resampling.BICUBIC))
