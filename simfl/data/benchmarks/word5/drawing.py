"""Pictures of words in the style of a client: paper, street signs, handwriting, till receipts, signs at night."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from simfl.data.benchmarks.random_stream import RandomStream
from simfl.data.benchmarks.word5.sources import PHOTOS

HEIGHT, WIDTH = 32, 128  # pixels
LETTER_SIZE = 64  # pixels: letters are drawn at this size, then scaled down
MIN_CONTRAST = 60  # grey levels between ink and background
Colour = np.ndarray  # float32 [3] or a background [HEIGHT, WIDTH, 3], 0 to 255


def draw(client: str, text: str, font: Path, random: RandomStream) -> Image.Image:
    """Draw a word in colour, 32 pixels high and 128 wide."""
    degrees, shear, fill = TRANSFORMS[client]
    mask = _render(text, font, random.uniform(-degrees, degrees), random.uniform(-shear, shear))
    ink = _place(mask, random, fill)
    background = BACKGROUNDS[client](random)
    colour = _ink(background, random, client)
    picture = background + ink[:, :, None] * (colour - background)
    return FINISH[client](picture, random)


def contrast(background: Colour, colour: Colour) -> float:
    """Return the difference in grey level between an ink colour and the mean of a background."""
    return abs(float(_grey(background).mean()) - float(_grey(colour)))


TRANSFORMS = {  # maximum rotation in degrees; maximum shear; minimum share of the picture height filled by the word
    "print": (1.0, 0.0, 0.7),
    "sign": (6.0, 0.25, 0.6),
    "hand": (3.0, 0.1, 0.75),
    "receipt": (1.5, 0.0, 0.6),
    "night": (5.0, 0.2, 0.6),
}


@cache
def _font(path: Path) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(str(path), LETTER_SIZE, layout_engine=ImageFont.Layout.BASIC)


@cache
def _photo(number: int) -> Image.Image:
    return Image.open(PHOTOS[number].path("word5")).convert("RGB")


def _render(text: str, path: Path, degrees: float, shear: float) -> Image.Image:
    """Return the ink of a word, rotated, sheared and cropped to its bounds."""
    font = _font(path)
    left, top, right, bottom = font.getbbox(text)
    edge = LETTER_SIZE // 2
    image = Image.new("L", (round(right - left) + 2 * edge, round(bottom - top) + 2 * edge))
    ImageDraw.Draw(image).text((edge - left, edge - top), text, fill=255, font=font)
    if shear:
        affine = (1, shear, -shear * image.height / 2, 0, 1, 0)
        image = image.transform(image.size, Image.Transform.AFFINE, affine, Image.Resampling.BILINEAR)
    if degrees:
        image = image.rotate(degrees, Image.Resampling.BILINEAR)
    return image.crop(image.getbbox())


def _place(mask: Image.Image, random: RandomStream, fill: float) -> np.ndarray:
    """Place the ink in the picture, float32 [HEIGHT, WIDTH] in [0, 1]. Long words are compressed to fit."""
    height = round(HEIGHT * random.uniform(fill, 0.94))
    width = min(round(mask.width * height / mask.height * random.uniform(0.85, 1.15)), round(WIDTH * 0.96))
    small = mask.resize((max(4, width), height), Image.Resampling.BOX)
    page = np.zeros((HEIGHT, WIDTH), np.float32)
    left, top = random.randrange(WIDTH - small.width + 1), random.randrange(HEIGHT - height + 1)
    page[top : top + height, left : left + small.width] = np.asarray(small, np.float32) / 255
    return page


def _grey(colour: Colour) -> np.ndarray:
    return np.asarray(colour @ np.array([0.299, 0.587, 0.114], np.float32))


def _ink(background: Colour, random: RandomStream, client: str) -> Colour:
    """Draw a colour that contrasts with its background: dark on paper, any on photographs, light at night."""
    mean = float(_grey(background).mean())
    while True:
        if client == "sign":
            colour = np.array([random.uniform(0, 255) for _ in range(3)], np.float32)
        elif client == "night":
            colour = np.array([random.uniform(150, 255) for _ in range(3)], np.float32)
        elif client == "hand":
            colour = np.array([random.uniform(0, 70), random.uniform(0, 70), random.uniform(20, 150)], np.float32)
        else:
            colour = np.full(3, random.uniform(0, min(110.0, mean - MIN_CONTRAST)), np.float32)
        if contrast(background, colour) >= MIN_CONTRAST:
            return colour


def _paper(random: RandomStream) -> Colour:
    shade = np.array([random.uniform(215, 255), random.uniform(210, 250), random.uniform(200, 245)], np.float32)
    slope = np.linspace(-1, 1, WIDTH, dtype=np.float32) * random.uniform(-12, 12)
    return np.broadcast_to(shade + slope[None, :, None], (HEIGHT, WIDTH, 3)).copy()


def _street(random: RandomStream) -> Colour:
    """Return a crop of a photograph at random scale; half of the crops are covered by a painted board."""
    photo = _photo(random.randrange(len(PHOTOS)))
    width = random.randint(64, 320)
    left, top = random.randrange(photo.width - width), random.randrange(photo.height - width // 4)
    crop = photo.resize((WIDTH, HEIGHT), Image.Resampling.BILINEAR, (left, top, left + width, top + width // 4))
    pixels = np.asarray(crop, np.float32)
    if random.random() < 0.5:
        board = np.array([random.uniform(0, 255) for _ in range(3)], np.float32)
        pixels = pixels * 0.15 + board * 0.85
    return pixels.copy()


def _ruled(random: RandomStream) -> Colour:
    page = _paper(random)
    colour = np.array([random.uniform(120, 200), random.uniform(140, 210), random.uniform(190, 240)], np.float32)
    start, step = random.randrange(12), random.randint(9, 22)
    page[start::step] = colour
    return page


def _thermal(random: RandomStream) -> Colour:
    return np.full((HEIGHT, WIDTH, 3), random.uniform(190, 245), np.float32)


def _dark(random: RandomStream) -> Colour:
    return _street(random) * random.uniform(0.12, 0.35)


BACKGROUNDS: dict[str, Callable[[RandomStream], Colour]] = {
    "print": _paper,
    "sign": _street,
    "hand": _ruled,
    "receipt": _thermal,
    "night": _dark,
}


def _noisy(picture: Colour, random: RandomStream, deviation: float, blur: float) -> Image.Image:
    if deviation:
        noise = random.generator.standard_normal((HEIGHT, WIDTH, 1), dtype=np.float32)
        picture = picture + noise * deviation
    image = Image.fromarray(np.clip(picture + 0.5, 0, 255).astype(np.uint8))
    return image.filter(ImageFilter.GaussianBlur(blur)) if blur > 0.1 else image


def _clean(picture: Colour, random: RandomStream) -> Image.Image:
    return _noisy(picture, random, random.uniform(0, 6), random.uniform(0, 0.5))


def _blurred(picture: Colour, random: RandomStream) -> Image.Image:
    return _noisy(picture, random, random.uniform(0, 10), random.uniform(0, 0.9))


def _dropped_out(picture: Colour, random: RandomStream) -> Image.Image:
    """Fade some columns, as dead dots of a print head do, and some rows, as uneven paper feed does."""
    paper = picture.max()
    for _ in range(random.randrange(6)):
        column = random.randrange(WIDTH)
        picture[:, column] += (paper - picture[:, column]) * 0.7
    for _ in range(random.randrange(3)):
        row = random.randrange(HEIGHT)
        picture[row] += (paper - picture[row]) * 0.5
    return _noisy(picture, random, random.uniform(2, 12), random.uniform(0, 0.6))


def _grainy(picture: Colour, random: RandomStream) -> Image.Image:
    image = _noisy(picture, random, 0.0, random.uniform(0, 1.0))
    return _noisy(np.asarray(image, np.float32), random, random.uniform(6, 18), 0.0)


FINISH: dict[str, Callable[[Colour, RandomStream], Image.Image]] = {
    "print": _clean,
    "sign": _blurred,
    "hand": _clean,
    "receipt": _dropped_out,
    "night": _grainy,
}
