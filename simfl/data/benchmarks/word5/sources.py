"""What pictures of words are made of: two photographs and 35 fonts from pip packages, and a list of words."""

from __future__ import annotations

from pathlib import Path

from simfl.data.benchmarks.provider_invoices.fonts import FAMILIES
from simfl.data.benchmarks.word5 import lists
from simfl.data.readers.packaged import Packaged

PHOTOS = tuple(  # CC BY 2.0, by danielbuechele and vultilion
    Packaged("scikit-learn", "1.9.1", f"datasets/images/{name}.jpg", sha256, module="sklearn")
    for name, sha256 in (("china", "8378025ad2519d64"), ("flower", "a77f6ec41e353afd"))
)


def _bundled(family: str, bold: bool) -> Packaged:
    package, version, faces = FAMILIES[family]
    return Packaged(package, version, f"files/{faces[bold][0]}", faces[bold][1])


def _both(*families: str) -> tuple[Packaged, ...]:
    return tuple(_bundled(family, bold) for family in families for bold in (False, True))


# of each client: fonts that are trained on, and fonts that are only in the split test_font; all under the SIL Open Font
# License 1.1 but Permanent Marker, Satisfy and Luckiest Guy, which are under Apache-2.0
FONTS: dict[str, tuple[tuple[Packaged, ...], tuple[Packaged, ...]]] = {
    "print": (_both("Oxygen", "PT Serif", "PT Sans Narrow", "Crimson Text"), _both("Play")),
    "sign": (
        (
            Packaged("fontpkg-alfa-slab-one", "2.0", "files/AlfaSlabOne-Regular.ttf", "28664afa698a3393"),
            Packaged("fontpkg-anton", "2.116", "files/Anton-Regular.ttf", "a4ba3a92350ebb03"),
            Packaged("fontpkg-bebas-neue", "2.0", "files/BebasNeue-Regular.ttf", "08e4623805102d81"),
            Packaged("fontpkg-bungee", "2.0", "files/Bungee-Regular.ttf", "c4f5361ce120af3e"),
            Packaged("fontpkg-lobster", "2.100", "files/Lobster-Regular.ttf", "d6568e697fd50ced"),
            Packaged("fontpkg-luckiest-guy", "1.1", "files/LuckiestGuy-Regular.ttf", "cfbdd68a039f92df"),
            Packaged("fontpkg-lilita-one", "1.2", "files/LilitaOne-Regular.ttf", "f5b641c45c69d772"),
            Packaged("fontpkg-titan-one", "1.1", "files/TitanOne-Regular.ttf", "563ff6de179bbd44"),
        ),
        (
            Packaged("fontpkg-abril-fatface", "1.1", "files/AbrilFatface-Regular.ttf", "5971d4a3758a922a"),
            Packaged("fontpkg-righteous", "1.0", "files/Righteous-Regular.ttf", "2ffb3fe5c27d7e65"),
        ),
    ),
    "hand": (
        (
            Packaged("fontpkg-caveat", "2.0", "files/Caveat[wght].ttf", "0bdb6b660482d315"),
            Packaged("fontpkg-dancing-script", "2.1", "files/DancingScript[wght].ttf", "21808625578fe8d8"),
            Packaged("fontpkg-kalam", "2.1", "files/Kalam-Regular.ttf", "57cecb63d4608019"),
            Packaged("fontpkg-indie-flower", "2.0", "files/IndieFlower-Regular.ttf", "ccc94b22b156e9c5"),
            Packaged("fontpkg-delius", "1.1", "files/Delius-Regular.ttf", "c0fd66626926b637"),
            Packaged("fontpkg-satisfy", "1.1", "files/Satisfy-Regular.ttf", "55bb141a0a23a322"),
            Packaged("fontpkg-permanent-marker", "1.1", "files/PermanentMarker-Regular.ttf", "28f82c8a7943cb8e"),
        ),
        (
            Packaged("fontpkg-pacifico", "3.1", "files/Pacifico-Regular.ttf", "5b6c0d5334a7bf77"),
            Packaged("fontpkg-shadows-into-light", "1.0", "files/ShadowsIntoLight.ttf", "1347863151acdc00"),
        ),
    ),
    "receipt": (
        (
            *_both("Space Mono"),
            Packaged("fontpkg-ibm-plex-mono", "2.3", "files/IBMPlexMono-Regular.ttf", "6a3412f058c7d8df"),
            Packaged("fontpkg-roboto-mono", "3.1", "files/RobotoMono[wght].ttf", "66a80e79d17e4c7c"),
            Packaged("fontpkg-source-code-pro", "1.26", "files/SourceCodePro[wght].ttf", "b400fc584e10aff2"),
        ),
        (Packaged("fontpkg-inconsolata", "3.1", "files/Inconsolata[wdth,wght].ttf", "23ded25b447074d0"),),
    ),
    "night": (
        (
            Packaged("fontpkg-archivo-black", "1.6", "files/ArchivoBlack-Regular.ttf", "dd9a89a019b4849f"),
            Packaged("fontpkg-fjalla-one", "1.2", "files/FjallaOne-Regular.ttf", "ce3b299625abe3c7"),
            Packaged("fontpkg-oswald", "4.103", "files/Oswald[wght].ttf", "5b38c246e255a12f"),
            Packaged("fontpkg-teko", "2.0", "files/Teko[wght].ttf", "d1321889f262bbbf"),
        ),
        (Packaged("fontpkg-russo-one", "1.0", "files/RussoOne-Regular.ttf", "bc0abcc660bd8b7a"),),
    ),
}
CLIENTS = tuple(FONTS)


def files(words: str) -> list[Path]:
    """Every file, with that of the source of words. DataError if one is missing or another than expected."""
    fonts = [font for known, held in FONTS.values() for font in (*known, *held)]
    return [lists.file(words), *(part.path("word5") for part in (*PHOTOS, *fonts))]
