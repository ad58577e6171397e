"""The picture of a word in the style of its client: paper, street signs, handwriting, till receipts, signs at night."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from simfl.data.benchmarks.dice import Dice
from simfl.data.benchmarks.word5.parts import PHOTOS

HEIGHT, WIDTH = 32, 128  # pixels
TALL = 64  # pixels: letters are drawn this large, then squeezed
CONTRAST = 60  # grey levels between ink and background, at least
Colour = np.ndarray  # float32 [3] or a background [HEIGHT, WIDTH, 3], 0 to 255


def draw(client: str, text: str, font: Path, dice: Dice) -> Image.Image:
    """The word in colour, 32 pixels high and 128 wide."""
    degrees, shear, fill = TILT[client]
    mask = _letters(text, font, dice.within(-degrees, degrees), dice.within(-shear, shear))
    ink = _placed(mask, dice, fill)
    background = BACKGROUNDS[client](dice)
    colour = _ink(background, dice, client)
    picture = background + ink[:, :, None] * (colour - background)
    return FINISH[client](picture, dice)


def contrast(background: Colour, colour: Colour) -> float:
    """The difference of grey levels between an ink and the mean of a background."""
    return abs(float(_grey(background).mean()) - float(_grey(colour)))


TILT = {  # degrees turned and shear, at most; least share of the picture's height that the word fills
    "print": (1.0, 0.0, 0.7),
    "sign": (6.0, 0.25, 0.6),
    "hand": (3.0, 0.1, 0.75),
    "receipt": (1.5, 0.0, 0.6),
    "night": (5.0, 0.2, 0.6),
}


@cache
def _font(path: Path) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(str(path), TALL, layout_engine=ImageFont.Layout.BASIC)


@cache
def _photo(number: int) -> Image.Image:
    return Image.open(PHOTOS[number].path("word5")).convert("RGB")


def _letters(text: str, path: Path, degrees: float, shear: float) -> Image.Image:
    """The word's ink, turned and sheared, cropped to where it is."""
    font = _font(path)
    left, top, right, bottom = font.getbbox(text)
    edge = TALL // 2
    image = Image.new("L", (round(right - left) + 2 * edge, round(bottom - top) + 2 * edge))
    ImageDraw.Draw(image).text((edge - left, edge - top), text, fill=255, font=font)
    if shear:
        lean = (1, shear, -shear * image.height / 2, 0, 1, 0)
        image = image.transform(image.size, Image.Transform.AFFINE, lean, Image.Resampling.BILINEAR)
    if degrees:
        image = image.rotate(degrees, Image.Resampling.BILINEAR)
    return image.crop(image.getbbox())


def _placed(mask: Image.Image, dice: Dice, fill: float) -> np.ndarray:
    """The ink where it stands in the picture, float32 [HEIGHT, WIDTH] in [0, 1]; long words are squeezed."""
    height = round(HEIGHT * dice.within(fill, 0.94))
    width = min(round(mask.width * height / mask.height * dice.within(0.85, 1.15)), round(WIDTH * 0.96))
    small = mask.resize((max(4, width), height), Image.Resampling.BOX)
    page = np.zeros((HEIGHT, WIDTH), np.float32)
    left, top = dice.below(WIDTH - small.width + 1), dice.below(HEIGHT - height + 1)
    page[top : top + height, left : left + small.width] = np.asarray(small, np.float32) / 255
    return page


def _grey(colour: Colour) -> np.ndarray:
    return np.asarray(colour @ np.array([0.299, 0.587, 0.114], np.float32))


def _ink(background: Colour, dice: Dice, client: str) -> Colour:
    """A colour that is told from its background: dark on paper, any on photographs, light at night."""
    mean = float(_grey(background).mean())
    while True:
        if client == "sign":
            colour = np.array([dice.within(0, 255) for _ in range(3)], np.float32)
        elif client == "night":
            colour = np.array([dice.within(150, 255) for _ in range(3)], np.float32)
        elif client == "hand":
            colour = np.array([dice.within(0, 70), dice.within(0, 70), dice.within(20, 150)], np.float32)
        else:
            colour = np.full(3, dice.within(0, min(110.0, mean - CONTRAST)), np.float32)
        if contrast(background, colour) >= CONTRAST:
            return colour


def _paper(dice: Dice) -> Colour:
    shade = np.array([dice.within(215, 255), dice.within(210, 250), dice.within(200, 245)], np.float32)
    slope = np.linspace(-1, 1, WIDTH, dtype=np.float32) * dice.within(-12, 12)
    return np.broadcast_to(shade + slope[None, :, None], (HEIGHT, WIDTH, 3)).copy()


def _street(dice: Dice) -> Colour:
    """A piece of a photograph, at random scale; half of them behind a painted board."""
    photo = _photo(dice.below(len(PHOTOS)))
    width = dice.between(64, 320)
    left, top = dice.below(photo.width - width), dice.below(photo.height - width // 4)
    piece = photo.resize((WIDTH, HEIGHT), Image.Resampling.BILINEAR, (left, top, left + width, top + width // 4))
    pixels = np.asarray(piece, np.float32)
    if dice.real() < 0.5:
        board = np.array([dice.within(0, 255) for _ in range(3)], np.float32)
        pixels = pixels * 0.15 + board * 0.85
    return pixels.copy()


def _ruled(dice: Dice) -> Colour:
    page = _paper(dice)
    colour = np.array([dice.within(120, 200), dice.within(140, 210), dice.within(190, 240)], np.float32)
    start, step = dice.below(12), dice.between(9, 22)
    page[start::step] = colour
    return page


def _thermal(dice: Dice) -> Colour:
    return np.full((HEIGHT, WIDTH, 3), dice.within(190, 245), np.float32)


def _dark(dice: Dice) -> Colour:
    return _street(dice) * dice.within(0.12, 0.35)


BACKGROUNDS: dict[str, Callable[[Dice], Colour]] = {
    "print": _paper,
    "sign": _street,
    "hand": _ruled,
    "receipt": _thermal,
    "night": _dark,
}


def _noisy(picture: Colour, dice: Dice, deviation: float, blur: float) -> Image.Image:
    if deviation:
        noise = dice.generator.standard_normal((HEIGHT, WIDTH, 1), dtype=np.float32)
        picture = picture + noise * deviation
    image = Image.fromarray(np.clip(picture + 0.5, 0, 255).astype(np.uint8))
    return image.filter(ImageFilter.GaussianBlur(blur)) if blur > 0.1 else image


def _clean(picture: Colour, dice: Dice) -> Image.Image:
    return _noisy(picture, dice, dice.within(0, 6), dice.within(0, 0.5))


def _blurred(picture: Colour, dice: Dice) -> Image.Image:
    return _noisy(picture, dice, dice.within(0, 10), dice.within(0, 0.9))


def _dropped_out(picture: Colour, dice: Dice) -> Image.Image:
    """The printer's head has dead dots: some columns are pale, and rows where the paper ran unevenly."""
    paper = picture.max()
    for _ in range(dice.below(6)):
        column = dice.below(WIDTH)
        picture[:, column] += (paper - picture[:, column]) * 0.7
    for _ in range(dice.below(3)):
        row = dice.below(HEIGHT)
        picture[row] += (paper - picture[row]) * 0.5
    return _noisy(picture, dice, dice.within(2, 12), dice.within(0, 0.6))


def _grainy(picture: Colour, dice: Dice) -> Image.Image:
    image = _noisy(picture, dice, 0.0, dice.within(0, 1.0))
    return _noisy(np.asarray(image, np.float32), dice, dice.within(6, 18), 0.0)


FINISH: dict[str, Callable[[Colour, Dice], Image.Image]] = {
    "print": _clean,
    "sign": _blurred,
    "hand": _clean,
    "receipt": _dropped_out,
    "night": _grainy,
}
