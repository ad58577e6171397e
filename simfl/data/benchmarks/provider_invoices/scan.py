"""Pictures of pages, and the errors of the scanner that reads them: rotation, blur, noise and misread characters."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from simfl.data.benchmarks.fonts import glyphs
from simfl.data.benchmarks.provider_invoices.layout import InvoicePage, PrintedWord, Shape
from simfl.data.benchmarks.random_stream import RandomStream

OVERSAMPLING = 2  # pages are drawn at this scale, then averaged down, so that letters can stand on half pixels
CONFUSIONS = {
    "0": "O8D", "1": "lI7", "2": "Z7", "3": "8B", "4": "A9", "5": "S6", "6": "b8", "7": "1T", "8": "B3", "9": "g4",
    "a": "oe", "b": "h6", "c": "eo", "d": "cl", "e": "co", "f": "t", "g": "q9", "h": "b", "i": "l1", "k": "h",
    "l": "1I", "m": "rn", "n": "ru", "o": "0c", "p": "q", "r": "n", "s": "5", "t": "f", "u": "v", "v": "y", "y": "v",
    "B": "8", "D": "O", "E": "F", "G": "6", "I": "l", "O": "0", "S": "5", "T": "7", "Z": "2", ".": ",", ",": ".",
}  # fmt: skip


@dataclass(frozen=True)
class ScanEffects:
    """Changes that a scanner makes to a picture. The default changes nothing."""

    degrees: float = 0.0  # rotation about the centre
    blur: float = 0.0  # radius in pixels
    noise: float = 0.0  # standard deviation in grey levels


def draw(page: InvoicePage, width: int) -> Image.Image:
    """Draw a page as a grey picture `width` pixels wide."""
    scale = width * OVERSAMPLING / 1000
    size = (width * OVERSAMPLING, round(page.height * width / 1000) * OVERSAMPLING)
    image = Image.new("L", size, 255)
    canvas = ImageDraw.Draw(image)
    red, green, blue = page.accent
    accent = (299 * red + 587 * green + 114 * blue) // 1000
    for shape in page.shapes:
        _draw_shape(canvas, shape, scale, (30, accent, 225)[shape.shade])
    for ink, shade in enumerate((20, accent, 250)):
        words = [word for word in page.words if word.ink == ink]
        if words:
            image.paste(shade, mask=_coverage(words, page.family, scale, image.size))
    return image.reduce(OVERSAMPLING)


def _coverage(words: list[PrintedWord], family: str, scale: float, size: tuple[int, int]) -> Image.Image:
    """Return the share of each pixel that is covered by ink, as a grey picture.

    Words are pasted letter by letter from a cache: on pages this small, Pillow's own text drawing takes 15 times as
    long.
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


def _draw_shape(canvas: ImageDraw.ImageDraw, shape: Shape, scale: float, shade: int) -> None:
    left, top, right, bottom = (v * scale for v in (shape.left, shape.top, shape.right, shape.bottom))
    middle, half = (left + right) / 2, (top + bottom) / 2
    if shape.kind == "line":
        canvas.line((left, top, right, bottom), fill=shade, width=OVERSAMPLING)
    elif shape.kind in ("box", "square"):
        canvas.rectangle((left, top, right, bottom), fill=shade)
    elif shape.kind == "disc":
        canvas.ellipse((left, top, right, bottom), fill=shade)
    elif shape.kind == "ring":
        canvas.ellipse((left, top, right, bottom), outline=shade, width=round((right - left) / 5))
    elif shape.kind == "triangle":
        canvas.polygon([(middle, top), (right, bottom), (left, bottom)], fill=shade)
    elif shape.kind == "diamond":
        canvas.polygon([(middle, top), (right, half), (middle, bottom), (left, half)], fill=shade)
    elif shape.kind == "bars":
        third = (right - left) / 3
        for i, height in enumerate((0.5, 0.75, 1.0)):
            x = left + i * third
            canvas.rectangle((x, bottom - height * (bottom - top), x + 0.7 * third, bottom), fill=shade)
    else:
        raise AssertionError(shape.kind)


def scan(image: Image.Image, effects: ScanEffects, generator: np.random.Generator) -> Image.Image:
    """Apply the effects of a scanner and reduce the picture to 16 grey levels."""
    if effects.degrees:
        image = image.rotate(effects.degrees, Image.Resampling.BILINEAR, fillcolor=255)
    if effects.blur:
        image = image.filter(ImageFilter.GaussianBlur(effects.blur))
    levels = np.asarray(image, np.float32)
    if effects.noise:
        levels = levels + generator.standard_normal(levels.shape, dtype=np.float32) * effects.noise
    return Image.fromarray(np.clip(levels / 17 + 0.5, 0, 15).astype(np.uint8) * np.uint8(17))


def error_rate(group: int, num_groups: int, highest: float) -> float:
    """Return the share of characters that a scanner misreads: 0 for the first, growing quadratically to `highest`."""
    return highest * (group / max(1, num_groups - 1)) ** 2


@cache
def confusions(namespace: str, seed: int, group: int) -> dict[str, str]:
    """Return the character that one scanner reads in place of each character; the choice is fixed for a scanner."""
    random = RandomStream("provider_invoices", namespace, seed, "scanner", group)
    return {char: random.choice(others) for char, others in CONFUSIONS.items()}


def misread(words: list[str], table: dict[str, str], rate: float, generator: np.random.Generator) -> list[str]:
    """Replace a share of about `rate` of the characters by their entry in `table`; characters without one stay."""
    if not rate:
        return words
    text = "\n".join(words)
    hit = np.flatnonzero(generator.random(len(text)) < rate)
    chars = list(text)
    for i in hit.tolist():
        chars[i] = table.get(chars[i], chars[i])
    return "".join(chars).split("\n")
