"""Fonts of printed pages, and the width of text set in them.

Widths are the advances in the font file, read at 1,000 pixels an em. At that size they are whole numbers that neither
hinting nor the FreeType version changes, so positions on the page and the hash of the data are identical everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from PIL import ImageFont

from simfl.data.benchmarks.package_file import PackageFile

EM = 1000


@dataclass(frozen=True)
class FontFamily:
    """Regular and bold face of a family, from one pip package; all are under the SIL Open Font License 1.1."""

    package: str
    version: str
    regular: tuple[str, str]  # file, first 16 digits of its SHA-256
    bold: tuple[str, str]
    scale: float  # factor on the font size that makes families look equally large

    def face(self, bold: bool) -> PackageFile:
        """Return the font file of one face."""
        name, sha256 = self.bold if bold else self.regular
        return PackageFile(self.package, self.version, f"files/{name}", sha256)

    @property
    def source(self) -> str:
        """Return package and version, for a data card."""
        return f"{self.package} {self.version}"


FAMILIES: dict[str, FontFamily] = {
    "Oxygen": FontFamily(
        "fontpkg-oxygen",
        "0.201",
        ("Oxygen-Regular.ttf", "a328b8fa366bdd94"),
        ("Oxygen-Bold.ttf", "d86d9a11ad1aa242"),
        0.94,
    ),
    "PT Serif": FontFamily(
        "fontpkg-pt-serif",
        "1.0",
        ("PT_Serif-Web-Regular.ttf", "a4951fade06ff8f0"),
        ("PT_Serif-Web-Bold.ttf", "038ba7336bd7ea14"),
        0.96,
    ),
    "PT Sans Narrow": FontFamily(
        "fontpkg-pt-sans-narrow",
        "2.3",
        ("PT_Sans-Narrow-Web-Regular.ttf", "4102edda03059163"),
        ("PT_Sans-Narrow-Web-Bold.ttf", "e69d83bcf5bd6478"),
        1.06,
    ),
    "Play": FontFamily(
        "fontpkg-play",
        "2.101",
        ("Play-Regular.ttf", "eed0da79005cab35"),
        ("Play-Bold.ttf", "45c572eccda4cf33"),
        0.96,
    ),
    "Crimson Text": FontFamily(
        "fontpkg-crimson-text",
        "1.100",
        ("CrimsonText-Regular.ttf", "48e6c5d5ad1d0159"),
        ("CrimsonText-Bold.ttf", "a3a0765fc5e8d0b4"),
        1.06,
    ),
    "Space Mono": FontFamily(
        "fontpkg-space-mono",
        "1.3",
        ("SpaceMono-Regular.ttf", "95837e182baeeada"),
        ("SpaceMono-Bold.ttf", "405e73d41afb7e59"),
        0.82,
    ),
}


def face(family: str, bold: bool) -> Path:
    """Return the path of a font file. Raise DataError if its package is missing or holds another version of it."""
    return FAMILIES[family].face(bold).path("provider_invoices")


def faces() -> list[Path]:
    """Return the font files of all families, regular before bold. Raise DataError if one is missing."""
    return [face(family, bold) for family in FAMILIES for bold in (False, True)]


def _load(family: str, bold: bool, pixels: float) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(str(face(family, bold)), pixels, layout_engine=ImageFont.Layout.BASIC)


class Widths(dict[str, float]):
    """Cache of the widths of texts in one font, in ems."""

    def __init__(self, family: str, bold: bool) -> None:
        super().__init__()
        self._font = _load(family, bold, EM)
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
    """Return the widths of one font."""
    return Widths(family, bold)


Glyph = tuple[np.ndarray, int, int, float]  # ink uint8 [h, w]; its left and top from the pen in pixels; advance in ems


class Glyphs(dict[str, Glyph]):
    """Cache of the rendered letters of one font at one size."""

    def __init__(self, family: str, bold: bool, pixels: float) -> None:
        super().__init__()
        self._font, self._widths = _load(family, bold, pixels), widths(family, bold)

    def __missing__(self, char: str) -> Glyph:
        mask, (left, top) = self._font.getmask2(char, anchor="ls")
        ink = np.array(mask, np.uint8).reshape(mask.size[::-1])
        self[char] = (ink, round(left), round(top), self._widths[char])
        return self[char]


@cache
def glyphs(family: str, bold: bool, pixels: float) -> Glyphs:
    """Return the letters of one font at a size in pixels."""
    return Glyphs(family, bold, pixels)
