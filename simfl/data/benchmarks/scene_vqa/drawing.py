"""Pictures of plans: drawings of things on a background."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from PIL import Image, ImageOps

from simfl.data.benchmarks.scene_vqa.content import COLOURS, Content
from simfl.data.benchmarks.scene_vqa.plan import PlacedThing, ScenePlan
from simfl.seeds import rng

BACKGROUND_SIDE = 256  # pixels of a background, from which pictures are cropped
SPRITE_SIDE = 160  # maximum pixels of a drawing in memory


def digest(files: Iterable[Path]) -> str:
    """Return the SHA-256 of the contents of these files, in this order."""
    found = hashlib.sha256()
    for path in files:
        found.update(path.read_bytes())
    return found.hexdigest()


@cache
def sprite(path: Path, colour: str) -> Image.Image:
    """Return a drawing as RGBA, cropped to its ink and painted in `colour`; "" keeps its own colours."""
    with Image.open(path) as opened:
        image = opened.convert("RGBA")
    image = image.crop(image.getchannel("A").getbbox())
    image.thumbnail((SPRITE_SIDE, SPRITE_SIDE))
    if not colour:
        return image
    alpha = image.getchannel("A")
    tone = COLOURS[colour]
    grey = ImageOps.autocontrast(image.convert("L"), mask=alpha)
    dark, light = (tuple(round(v * s + w) for v in tone) for s, w in ((0.45, 0), (0.55, 110)))
    painted = ImageOps.colorize(grey, black=dark, mid=tone, white=light).convert("RGBA")
    painted.putalpha(alpha)
    return painted


def draw(plan: ScenePlan, content: Content, grid: int, size: int, simple: bool = False) -> bytes:
    """Draw a plan as JPEG of `size` x `size` pixels, on white if `simple`, else on the background of its album."""
    image = Image.new("RGB", (size, size), "white") if simple else _background(plan, content, size)
    for placed in plan.placed:
        _paste(image, content, placed, size / grid)
    out = io.BytesIO()
    image.save(out, format="JPEG", quality=90)
    return out.getvalue()


def _background(plan: ScenePlan, content: Content, size: int) -> Image.Image:
    """Return a random crop of the album's background, or all of it resized if the picture is at least as large."""
    room = BACKGROUND_SIDE - size if size < BACKGROUND_SIDE else 1
    left, top = (int(v) for v in rng("scene_vqa", "crop", plan.id).integers(room, size=2))
    ground = content.background(plan.scene, plan.album, BACKGROUND_SIDE)
    if size < BACKGROUND_SIDE:
        return ground.crop((left, top, left + size, top + size))
    return ground.resize((size, size))


def _paste(image: Image.Image, content: Content, placed: PlacedThing, cell: float) -> None:
    drawing = sprite(content.file(placed.drawing), placed.colour)
    scale = placed.size * cell / max(drawing.size)
    width, height = (max(1, round(side * scale)) for side in drawing.size)
    small = drawing.resize((width, height), Image.Resampling.BICUBIC, reducing_gap=2.0)
    if placed.mirrored:
        small = small.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    left = round((placed.column + 0.5 + placed.right) * cell - width / 2)
    top = round((placed.row + 0.5 + placed.down) * cell - height / 2)
    image.paste(small, (left, top), small)
