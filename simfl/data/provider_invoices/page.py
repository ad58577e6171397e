"""The picture of a page: grey, small, and as badly scanned as its client's scanner is."""

from __future__ import annotations

import io
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from simfl.data.provider_invoices.fonts import sized
from simfl.data.provider_invoices.layout import Page, Shape, Word


@dataclass(frozen=True)
class Scan:
    """What a scanner does to the picture. The default does nothing."""

    degrees: float = 0.0  # turned about its centre
    blur: float = 0.0  # radius in pixels
    noise: float = 0.0  # standard deviation in grey levels


def draw(page: Page, width: int) -> Image.Image:
    """The page as a grey picture `width` pixels wide."""
    scale = width / 1000
    image = Image.new("L", (width, round(page.height * scale)), 255)
    pencil = ImageDraw.Draw(image)
    red, green, blue = page.accent
    accent = (299 * red + 587 * green + 114 * blue) // 1000
    for shape in page.shapes:
        _shape(pencil, shape, scale, (30, accent, 225)[shape.shade])
    for word in page.words:
        _word(pencil, word, page.family, scale, (20, accent, 250)[word.ink])
    return image


def _word(pencil: ImageDraw.ImageDraw, word: Word, family: str, scale: float, ink: int) -> None:
    font = sized(family, word.bold, round(word.size * scale * 4) / 4)
    pencil.text((word.left * scale, word.baseline * scale), word.text, fill=ink, font=font, anchor="ls")


def _shape(pencil: ImageDraw.ImageDraw, shape: Shape, scale: float, shade: int) -> None:
    left, top, right, bottom = (v * scale for v in (shape.left, shape.top, shape.right, shape.bottom))
    middle, half = (left + right) / 2, (top + bottom) / 2
    if shape.kind == "line":
        pencil.line((left, top, right, bottom), fill=shade, width=1)
    elif shape.kind in ("box", "square"):
        pencil.rectangle((left, top, right, bottom), fill=shade)
    elif shape.kind == "disc":
        pencil.ellipse((left, top, right, bottom), fill=shade)
    elif shape.kind == "ring":
        pencil.ellipse((left, top, right, bottom), outline=shade, width=max(1, round((right - left) / 5)))
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
    """The picture as this scanner sees it."""
    if how.degrees:
        image = image.rotate(how.degrees, Image.Resampling.BILINEAR, fillcolor=255)
    if how.blur:
        image = image.filter(ImageFilter.GaussianBlur(how.blur))
    if how.noise:
        grain = generator.standard_normal((image.height, image.width), dtype=np.float32) * how.noise
        image = Image.fromarray(np.clip(np.asarray(image) + grain, 0, 255).astype(np.uint8))
    return image


def png(image: Image.Image) -> bytes:
    """A PNG that is quick to write."""
    buffer = io.BytesIO()
    image.save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()
