"""Photographic content: things from Debian's Tux Paint stamps on photographs from MATE's backgrounds.

The six scenes have other things than those of the emoji. simfl does not install the packages; the error names the
command.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

from PIL import Image

from simfl.data.benchmarks.scene_vqa.content import Content, Thing
from simfl.errors import DataError
from simfl.seeds import rng

PACKAGES = {"stamps": "tuxpaint-stamps-default", "backgrounds": "mate-backgrounds"}
LICENCE = "GPL-2+ (Tux Paint stamps), GPL-2+ and CC BY-SA (MATE backgrounds)"
FOLDERS = {"stamps": "tuxpaint/stamps", "backgrounds": "backgrounds/mate/nature"}
SHARE = "SIMFL_SHARE"  # environment variable that replaces /usr/share


def _mammals(*names: str) -> tuple[str, ...]:
    return tuple(f"animals/mammals/{name}" for name in names)


SCENES: dict[str, tuple[Thing, ...]] = {
    "farm": (
        Thing("cow", "animal", _mammals("bovines/cow", "bovines/bull"), _mammals("bovines/cow_white")),
        Thing("pig", "animal", _mammals("pig"), _mammals("wildboar")),
        Thing("horse", "animal", _mammals("equines/horse", "equines/donkey")),
        Thing("chicken", "animal", ("animals/birds/hen", "animals/birds/rooster"), ("animals/birds/chicken_profile",)),
        Thing("tractor", "vehicle", ("vehicles/wheel_tractor",), painted=True),
        Thing("corn", "food", ("food/vegetables/corn",), plural="corns"),
    ),
    "sea": (
        Thing(
            "fish", "animal", tuple(f"animals/fish/{n}" for n in ("butterflyfish", "clownfish", "coraltrout")),
            ("animals/fish/stripedfish",), plural="fish",
        ),
        Thing("whale", "animal", _mammals("aquatic/whale"), _mammals("aquatic/orca")),
        Thing("seagull", "animal", ("animals/birds/seagull",), ("animals/birds/silver-gull",)),
        Thing("lobster", "animal", ("animals/fish/lobster",)),
        Thing("boat", "vehicle", ("vehicles/ship/chineseJunk",), ("vehicles/ship/walnutBoat",), painted=True),
        Thing("hat", "clothing", ("clothes/hats/sombrero",), ("clothes/hats/blue_fedora",), painted=True),
    ),
    "kitchen": (
        Thing("apple", "food", ("food/fruit/apple_red", "food/fruit/apple_green"), ("food/fruit/apple_fuji",)),
        Thing("pizza", "food", ("food/pizza",)),
        Thing("tomato", "food", ("food/vegetables/tomato",), plural="tomatoes"),
        Thing("mug", "container", ("household/dishes/mug",), painted=True),
        Thing("teapot", "container", ("household/dishes/teapot",), ("household/kettle",), painted=True),
        Thing("nutcracker", "tool", ("household/dishes/utensils/nutcracker",)),
    ),
    "garden": (
        Thing(
            "flower", "plant", tuple(f"plants/flowers/{n}" for n in ("rose", "iris", "daffodil", "marigold")),
            ("plants/flowers/anemone_red",),
        ),
        Thing("tree", "plant", ("plants/trees/birch",), ("plants/trees/holm_oak",)),
        Thing("mushroom", "plant", ("plants/mushrooms/cep",), ("plants/mushrooms/cep-1",)),
        Thing("bee", "animal", ("animals/insects/bee",), ("animals/insects/hornet",)),
        Thing("bird", "animal", ("animals/birds/blackbird", "animals/birds/magpie"), ("animals/birds/crow",)),
        Thing("spade", "tool", ("household/tools/spade",), painted=True),
    ),
    "street": (
        Thing(
            "car", "vehicle", ("vehicles/auto/sedan", "vehicles/auto/beetle"), ("vehicles/auto/sportscar2",),
            painted=True,
        ),
        Thing("bus", "vehicle", ("vehicles/masstransit/green_korean_bus",), plural="buses", painted=True),
        Thing("truck", "vehicle", ("vehicles/auto/truck",), ("vehicles/garbagetruck",), painted=True),
        Thing("dog", "animal", _mammals("dogs/dog"), _mammals("dogs/dingo")),
        Thing("shirt", "clothing", ("clothes/t_shirt",), ("clothes/t_poloshirt",), painted=True),
        Thing("bin", "container", ("household/garbagecan",), ("household/wheelie_bin",), painted=True),
    ),
    "workshop": (
        Thing("hammer", "tool", ("household/tools/hammer",), ("household/tools/mallet_metal",)),
        Thing("saw", "tool", ("household/tools/saw",)),
        Thing("wrench", "tool", ("household/tools/wrench",), ("household/tools/wrench_adjustable",), plural="wrenches"),
        Thing("toolbox", "container", ("household/tools/toolbox",), plural="toolboxes", painted=True),
        Thing("glove", "clothing", ("clothes/t_glove",), painted=True),
        Thing("key", "tool", ("household/key",)),
    ),
}  # fmt: skip
BACKGROUNDS = {
    "farm": ("GreenMeadow.jpg",),
    "sea": ("Aqua.jpg", "Storm.jpg"),
    "kitchen": ("Blinds.jpg",),
    "garden": ("Garden.jpg", "FreshFlower.jpg"),
    "street": ("Dune.jpg",),
    "workshop": ("Wood.jpg",),
}


def _folder(kind: str) -> Path:
    root = Path(os.environ.get(SHARE, "/usr/share")) / FOLDERS[kind]
    if not root.is_dir():
        raise DataError(f"data.content: {root} is missing; install it with: apt install {' '.join(PACKAGES.values())}")
    return root


def file(drawing: str) -> Path:
    """Return the PNG of a stamp. Raise DataError, with the command that installs it, if it is missing."""
    path = _folder("stamps") / f"{drawing}.png"
    if not path.is_file():
        raise DataError(f"data.content: {path} is missing; install it with: apt install {PACKAGES['stamps']}")
    return path


@cache
def background(scene: str, album: str, side: int) -> Image.Image:
    """Return a crop of a photograph that differs between albums."""
    random = rng("scene_vqa", "photo", album)
    names = BACKGROUNDS[scene]
    path = _folder("backgrounds") / names[int(random.integers(len(names)))]
    if not path.is_file():
        raise DataError(f"data.content: {path} is missing; install it with: apt install {PACKAGES['backgrounds']}")
    with Image.open(path) as opened:
        opened.draft("RGB", (3 * side, 2 * side))
        photo = opened.convert("RGB")
    wide = round(photo.width * 2 * side / photo.height)
    photo = photo.resize((wide, 2 * side), Image.Resampling.BICUBIC, reducing_gap=2.0)
    left, top = (int(random.integers(length - side)) for length in photo.size)
    return photo.crop((left, top, left + side, top + side))


STAMPS = Content(SCENES, file, background, tuple(PACKAGES.values()), LICENCE)
