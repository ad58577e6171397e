"""Files that pictures of words are made from: two photographs and 35 fonts from pip packages."""

from __future__ import annotations

from pathlib import Path

from simfl.data.benchmarks.fonts import FAMILIES
from simfl.data.benchmarks.package_file import PackageFile
from simfl.data.benchmarks.word5.words import words_file

PHOTOS = tuple(  # CC BY 2.0, by danielbuechele and vultilion
    PackageFile("scikit-learn", "1.9.1", f"datasets/images/{name}.jpg", sha256, module="sklearn")
    for name, sha256 in (("china", "8378025ad2519d64"), ("flower", "a77f6ec41e353afd"))
)


def _both(*families: str) -> tuple[PackageFile, ...]:
    """Return the regular and the bold face of each family."""
    return tuple(FAMILIES[family].face(bold) for family in families for bold in (False, True))


# For each client: the fonts of the splits train, valid and test, and the fonts of the split test_font alone. All are
# under the SIL Open Font License 1.1, except Permanent Marker, Satisfy and Luckiest Guy, which are under Apache-2.0.
FONTS: dict[str, tuple[tuple[PackageFile, ...], tuple[PackageFile, ...]]] = {
    "print": (_both("Oxygen", "PT Serif", "PT Sans Narrow", "Crimson Text"), _both("Play")),
    "sign": (
        (
            PackageFile("fontpkg-alfa-slab-one", "2.0", "files/AlfaSlabOne-Regular.ttf", "28664afa698a3393"),
            PackageFile("fontpkg-anton", "2.116", "files/Anton-Regular.ttf", "a4ba3a92350ebb03"),
            PackageFile("fontpkg-bebas-neue", "2.0", "files/BebasNeue-Regular.ttf", "08e4623805102d81"),
            PackageFile("fontpkg-bungee", "2.0", "files/Bungee-Regular.ttf", "c4f5361ce120af3e"),
            PackageFile("fontpkg-lobster", "2.100", "files/Lobster-Regular.ttf", "d6568e697fd50ced"),
            PackageFile("fontpkg-luckiest-guy", "1.1", "files/LuckiestGuy-Regular.ttf", "cfbdd68a039f92df"),
            PackageFile("fontpkg-lilita-one", "1.2", "files/LilitaOne-Regular.ttf", "f5b641c45c69d772"),
            PackageFile("fontpkg-titan-one", "1.1", "files/TitanOne-Regular.ttf", "563ff6de179bbd44"),
        ),
        (
            PackageFile("fontpkg-abril-fatface", "1.1", "files/AbrilFatface-Regular.ttf", "5971d4a3758a922a"),
            PackageFile("fontpkg-righteous", "1.0", "files/Righteous-Regular.ttf", "2ffb3fe5c27d7e65"),
        ),
    ),
    "hand": (
        (
            PackageFile("fontpkg-caveat", "2.0", "files/Caveat[wght].ttf", "0bdb6b660482d315"),
            PackageFile("fontpkg-dancing-script", "2.1", "files/DancingScript[wght].ttf", "21808625578fe8d8"),
            PackageFile("fontpkg-kalam", "2.1", "files/Kalam-Regular.ttf", "57cecb63d4608019"),
            PackageFile("fontpkg-indie-flower", "2.0", "files/IndieFlower-Regular.ttf", "ccc94b22b156e9c5"),
            PackageFile("fontpkg-delius", "1.1", "files/Delius-Regular.ttf", "c0fd66626926b637"),
            PackageFile("fontpkg-satisfy", "1.1", "files/Satisfy-Regular.ttf", "55bb141a0a23a322"),
            PackageFile("fontpkg-permanent-marker", "1.1", "files/PermanentMarker-Regular.ttf", "28f82c8a7943cb8e"),
        ),
        (
            PackageFile("fontpkg-pacifico", "3.1", "files/Pacifico-Regular.ttf", "5b6c0d5334a7bf77"),
            PackageFile("fontpkg-shadows-into-light", "1.0", "files/ShadowsIntoLight.ttf", "1347863151acdc00"),
        ),
    ),
    "receipt": (
        (
            *_both("Space Mono"),
            PackageFile("fontpkg-ibm-plex-mono", "2.3", "files/IBMPlexMono-Regular.ttf", "6a3412f058c7d8df"),
            PackageFile("fontpkg-roboto-mono", "3.1", "files/RobotoMono[wght].ttf", "66a80e79d17e4c7c"),
            PackageFile("fontpkg-source-code-pro", "1.26", "files/SourceCodePro[wght].ttf", "b400fc584e10aff2"),
        ),
        (PackageFile("fontpkg-inconsolata", "3.1", "files/Inconsolata[wdth,wght].ttf", "23ded25b447074d0"),),
    ),
    "night": (
        (
            PackageFile("fontpkg-archivo-black", "1.6", "files/ArchivoBlack-Regular.ttf", "dd9a89a019b4849f"),
            PackageFile("fontpkg-fjalla-one", "1.2", "files/FjallaOne-Regular.ttf", "ce3b299625abe3c7"),
            PackageFile("fontpkg-oswald", "4.103", "files/Oswald[wght].ttf", "5b38c246e255a12f"),
            PackageFile("fontpkg-teko", "2.0", "files/Teko[wght].ttf", "d1321889f262bbbf"),
        ),
        (PackageFile("fontpkg-russo-one", "1.0", "files/RussoOne-Regular.ttf", "bc0abcc660bd8b7a"),),
    ),
}
CLIENTS = tuple(FONTS)


def source_files(words: str) -> list[Path]:
    """Return every source file, the word list first. Raise DataError if one is missing or has unexpected content."""
    fonts = [font for known, held_out in FONTS.values() for font in (*known, *held_out)]
    return [words_file(words), *(part.path("word5") for part in (*PHOTOS, *fonts))]
