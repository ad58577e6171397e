"""Pictures of plans: drawings of things on a background."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from PIL import Image, ImageOps

from simfl.data.benchmarks.scene_vqa.contents import Content
from simfl.data.benchmarks.scene_vqa.plan import Placed, Plan
from simfl.data.benchmarks.scene_vqa.things import COLOURS
from simfl.seeds import rng

SIDE = 256  # pixels of a background, from which pictures are cut
SPRITE = 160  # pixels that are kept of a drawing, at most


def digest(files: Iterable[Path]) -> str:
    """A hash of these files, in this order."""
    found = hashlib.sha256()
    for path in files:
        found.update(path.read_bytes())
    return found.hexdigest()


@cache
def sprite(path: Path, colour: str) -> Image.Image:
    """The drawing in this colour (RGBA, cut to its ink); "" leaves it as it is."""
    with Image.open(path) as opened:
        image = opened.convert("RGBA")
    image = image.crop(image.getchannel("A").getbbox())
    image.thumbnail((SPRITE, SPRITE))
    if not colour:
        return image
    alpha = image.getchannel("A")
    tone = COLOURS[colour]
    grey = ImageOps.autocontrast(image.convert("L"), mask=alpha)
    dark, light = (tuple(round(v * s + w) for v in tone) for s, w in ((0.45, 0), (0.55, 110)))
    painted = ImageOps.colorize(grey, black=dark, mid=tone, white=light).convert("RGBA")
    painted.putalpha(alpha)
    return painted


def draw(plan: Plan, content: Content, grid: int, size: int, simple: bool = False) -> bytes:
    """The picture as JPEG, `size` x `size` pixels; a `simple` one on white, others on the ground of their album."""
    image = Image.new("RGB", (size, size), "white") if simple else _ground(plan, content, size)
    for one in plan.placed:
        _paste(image, content, one, size / grid)
    out = io.BytesIO()
    image.save(out, format="JPEG", quality=90)
    return out.getvalue()


def _ground(plan: Plan, content: Content, size: int) -> Image.Image:
    """A part of its album's background; all of it, squeezed, if the picture is as large."""
    left, top = (int(v) for v in rng("scene_vqa", "crop", plan.id).integers(SIDE - size if size < SIDE else 1, size=2))
    ground = content.background(plan.scene, plan.album, SIDE)
    return ground.crop((left, top, left + size, top + size)) if size < SIDE else ground.resize((size, size))


def _paste(image: Image.Image, content: Content, one: Placed, cell: float) -> None:
    found = sprite(content.file(one.drawing), one.colour)
    scale = one.size * cell / max(found.size)
    width, height = (max(1, round(side * scale)) for side in found.size)
    small = found.resize((width, height), Image.Resampling.BICUBIC, reducing_gap=2.0)
    if one.mirrored:
        small = small.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    left = round((one.column + 0.5 + one.right) * cell - width / 2)
    top = round((one.row + 0.5 + one.down) * cell - height / 2)
    image.paste(small, (left, top), small)
