"""The picture of a page: grey, small, and as badly scanned as its client's scanner is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from simfl.data.benchmarks.provider_invoices.fonts import glyphs
from simfl.data.benchmarks.provider_invoices.layout import Page, Shape, Word

FINE = 2  # pages are drawn this much larger, then averaged down: letters stand on half pixels


@dataclass(frozen=True)
class Scan:
    """What a scanner does to the picture. The default does nothing."""

    degrees: float = 0.0  # turned about its centre
    blur: float = 0.0  # radius in pixels
    noise: float = 0.0  # standard deviation in grey levels


def draw(page: Page, width: int) -> Image.Image:
    """The page as a grey picture `width` pixels wide."""
    scale = width * FINE / 1000
    image = Image.new("L", (width * FINE, round(page.height * width / 1000) * FINE), 255)
    pencil = ImageDraw.Draw(image)
    red, green, blue = page.accent
    accent = (299 * red + 587 * green + 114 * blue) // 1000
    for shape in page.shapes:
        _shape(pencil, shape, scale, (30, accent, 225)[shape.shade])
    for ink, shade in enumerate((20, accent, 250)):
        words = [word for word in page.words if word.ink == ink]
        if words:
            image.paste(shade, mask=_coverage(words, page.family, scale, image.size))
    return image.reduce(FINE)


def _coverage(words: list[Word], family: str, scale: float, size: tuple[int, int]) -> Image.Image:
    """How much ink each pixel gets, as a grey picture.

    Letter by letter from remembered ones: on pages this small Pillow's own text takes some 15 times as long.
    """
    ink = np.zeros((size[1], size[0]), np.uint8)
    for word in words:
        letters = glyphs(family, word.bold, round(word.size * scale * 2) / 2)
        x, y, em = word.left * scale, round(word.baseline * scale), word.size * scale
        for char in word.text:
            mask, right, down, advance = letters[char]
            top, left = y + down, int(x + 0.5) + right
            under = ink[top : top + mask.shape[0], left : left + mask.shape[1]]
            np.maximum(under, mask[: under.shape[0], : under.shape[1]], out=under)
            x += advance * em
    return Image.fromarray(ink)


def _shape(pencil: ImageDraw.ImageDraw, shape: Shape, scale: float, shade: int) -> None:
    left, top, right, bottom = (v * scale for v in (shape.left, shape.top, shape.right, shape.bottom))
    middle, half = (left + right) / 2, (top + bottom) / 2
    if shape.kind == "line":
        pencil.line((left, top, right, bottom), fill=shade, width=FINE)
    elif shape.kind in ("box", "square"):
        pencil.rectangle((left, top, right, bottom), fill=shade)
    elif shape.kind == "disc":
        pencil.ellipse((left, top, right, bottom), fill=shade)
    elif shape.kind == "ring":
        pencil.ellipse((left, top, right, bottom), outline=shade, width=round((right - left) / 5))
    elif shape.kind == "triangle":
        pencil.polygon([(middle, top), (right, bottom), (left, bottom)], fill=shade)
    elif shape.kind == "diamond":
        pencil.polygon([(middle, top), (right, half), (middle, bottom), (left, half)], fill=shade)
    elif shape.kind == "bars":
        third = (right - left) / 3
        for i, height in enumerate((0.5, 0.75, 1.0)):
            x = left + i * third
            pencil.rectangle((x, bottom - height * (bottom - top), x + 0.7 * third, bottom), fill=shade)
    else:
        raise AssertionError(shape.kind)


def scan(image: Image.Image, how: Scan, generator: np.random.Generator) -> Image.Image:
    """The picture as this scanner sees it, in 16 greys."""
    if how.degrees:
        image = image.rotate(how.degrees, Image.Resampling.BILINEAR, fillcolor=255)
    if how.blur:
        image = image.filter(ImageFilter.GaussianBlur(how.blur))
    levels = np.asarray(image, np.float32)
    if how.noise:
        levels = levels + generator.standard_normal(levels.shape, dtype=np.float32) * how.noise
    return Image.fromarray(np.clip(levels / 17 + 0.5, 0, 15).astype(np.uint8) * np.uint8(17))
