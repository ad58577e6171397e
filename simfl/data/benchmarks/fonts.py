"""The fonts invoices are set in, and how wide a text is in them.

Widths come from the advances in the font file, read at 1,000 pixels an em: whole numbers that no hinting or FreeType
version changes at that size. Positions on the page are thus the same on every machine, and so is the data set's hash.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
from PIL import ImageFont

from simfl.data.readers.packaged import Packaged

# family: package (all under the SIL Open Font License 1.1), its version, and (file, first 16 digits of its SHA-256) of
# regular and bold
Faces = tuple[tuple[str, str], tuple[str, str]]
FAMILIES: dict[str, tuple[str, str, Faces]] = {
    "Oxygen": (
        "fontpkg-oxygen",
        "0.201",
        (("Oxygen-Regular.ttf", "a328b8fa366bdd94"), ("Oxygen-Bold.ttf", "d86d9a11ad1aa242")),
    ),
    "PT Serif": (
        "fontpkg-pt-serif",
        "1.0",
        (("PT_Serif-Web-Regular.ttf", "a4951fade06ff8f0"), ("PT_Serif-Web-Bold.ttf", "038ba7336bd7ea14")),
    ),
    "PT Sans Narrow": (
        "fontpkg-pt-sans-narrow",
        "2.3",
        (("PT_Sans-Narrow-Web-Regular.ttf", "4102edda03059163"), ("PT_Sans-Narrow-Web-Bold.ttf", "e69d83bcf5bd6478")),
    ),
    "Play": (
        "fontpkg-play",
        "2.101",
        (("Play-Regular.ttf", "eed0da79005cab35"), ("Play-Bold.ttf", "45c572eccda4cf33")),
    ),
    "Crimson Text": (
        "fontpkg-crimson-text",
        "1.100",
        (("CrimsonText-Regular.ttf", "48e6c5d5ad1d0159"), ("CrimsonText-Bold.ttf", "a3a0765fc5e8d0b4")),
    ),
    "Space Mono": (
        "fontpkg-space-mono",
        "1.3",
        (("SpaceMono-Regular.ttf", "95837e182baeeada"), ("SpaceMono-Bold.ttf", "405e73d41afb7e59")),
    ),
}
SIZE = {
    "Oxygen": 0.94,
    "PT Serif": 0.96,
    "PT Sans Narrow": 1.06,
    "Play": 0.96,
    "Crimson Text": 1.06,
    "Space Mono": 0.82,
}
EM = 1000


def face(family: str, bold: bool) -> Path:
    """The font file. DataError if its package is missing or holds another file than this benchmark was made with."""
    package, version, faces = FAMILIES[family]
    name, sha256 = faces[bold]
    return Packaged(package, version, f"files/{name}", sha256).path("provider_invoices")


def _sized(family: str, bold: bool, pixels: float) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(str(face(family, bold)), pixels, layout_engine=ImageFont.Layout.BASIC)


class Widths(dict[str, float]):
    """Width of any text in ems of one font, remembered."""

    def __init__(self, family: str, bold: bool) -> None:
        super().__init__()
        self._font = _sized(family, bold, EM)
        self._advance: dict[str, int] = {}

    def __missing__(self, text: str) -> float:
        advance = self._advance
        for char in text:
            if char not in advance:
                advance[char] = round(self._font.getlength(char))
        width = sum(map(advance.__getitem__, text)) / EM
        if len(self) < 50_000:
            self[text] = width
        return width


@cache
def widths(family: str, bold: bool) -> Widths:
    """The widths of one font."""
    return Widths(family, bold)


Glyph = tuple[np.ndarray, int, int, float]  # ink uint8 [h, w]; its left and top from the pen in pixels; advance in ems


class Glyphs(dict[str, Glyph]):
    """Letters of one font at one size, remembered."""

    def __init__(self, family: str, bold: bool, pixels: float) -> None:
        super().__init__()
        self._font, self._widths = _sized(family, bold, pixels), widths(family, bold)

    def __missing__(self, char: str) -> Glyph:
        mask, (left, top) = self._font.getmask2(char, anchor="ls")
        ink = np.array(mask, np.uint8).reshape(mask.size[::-1])
        self[char] = (ink, round(left), round(top), self._widths[char])
        return self[char]


@cache
def glyphs(family: str, bold: bool, pixels: float) -> Glyphs:
    """The letters of one font at this size."""
    return Glyphs(family, bold, pixels)
