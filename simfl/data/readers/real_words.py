"""Real words of five sources, as far as they are on this machine: scene text in four sets, and lines of receipts.

IIIT5K (Mishra et al. 2012), SVT (Wang et al. 2011), ICDAR 2003 and 2013, and SROIE's lines (Huang et al. 2019), divided
by us: these are not the published splits. ICDAR 2003 and 2013 share photographs, so a word that is in 2013 is left out
of 2003 and neither is ever on both sides.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from simfl.constraints import Count, Fraction
from simfl.data.base import Data, Dataset
from simfl.data.io import records
from simfl.data.io.drawing import jpeg
from simfl.data.io.gather import kept
from simfl.data.io.words import Alphabet, Words, finish
from simfl.data.readers import receipts
from simfl.data.readers.scene_text import crops
from simfl.errors import ConfigError
from simfl.seeds import seed_for

EDITION = 1
SETS = {  # client: its LMDB folders, whose official parts are divided anew
    "IIIT5K": ("IIIT5K_train", "IIIT5K_test"),
    "SVT": ("SVT_train", "SVT_test"),
    "IC03": ("IC03_test",),
    "IC13": ("IC13_test",),
}
RECEIPTS = "SROIE"
TALLEST = 48  # pixels: lines of receipts are stored no higher


@dataclass(frozen=True)
class RealWords(Data):
    """Real words of five clients: IIIT5K, SVT, ICDAR 2003 and 2013, lines of SROIE; divided by us, by picture."""

    path: str = "$SIMFL_REAL_DATA"  # a folder with scene_text/ (LMDB folders) and sroie/; ~ and $VARIABLES are followed
    valid: Fraction = 0.1  # share of each client's pictures; of receipts, of whole receipts
    test: Fraction = 0.2  # likewise
    alphabet: Alphabet = "printable"  # words with other characters, such as blanks, are left out
    lines: Count = 4000  # of receipts, at most: words of the first ones in random order

    def load(self, cache: Path) -> Dataset:
        if not self.valid + self.test < 1:
            raise ConfigError(f"data.valid, data.test: {self.valid}, {self.test} given, below 1 together")
        root = records.folder(self.path)
        folders = [
            records.need(root, f"scene_text/{name}/data.mdb").parent for names in SETS.values() for name in names
        ]
        found = receipts.files(records.need(root, "sroie"))
        sources = [
            *(folder / "data.mdb" for folder in folders),
            *(p for parts in found.values() for p in parts.values()),
        ]
        return kept(cache, "real_words", EDITION, self, sources, lambda: self._build(root))

    def _build(self, root: Path) -> Dataset:
        gathered = {split: Words(self.alphabet) for split in ("train", "valid", "test")}
        for client, names in SETS.items():
            shared = _texts(root, SETS["IC13"]) if client == "IC03" else set()
            for name in names:
                for number, image, label in crops(root / "scene_text" / name):
                    split = self._split(client, f"{name}-{number}")
                    if _key(label) in shared:
                        gathered[split].dropped["in IC13 too"] += 1
                    else:
                        gathered[split].add(f"{name}-{number}", image, label, client)
        for split, id, image, text in self._lines(root / "sroie"):
            gathered[split].add(id, image, text, RECEIPTS)
        return finish("real_words", gathered, "each source's own: research use; pictures reduced, split by us")

    def _split(self, client: str, picture: str) -> str:
        drawn = seed_for("real_words", client, picture) % 10_000 / 10_000
        return "test" if drawn < self.test else "valid" if drawn < self.test + self.valid else "train"

    def _lines(self, root: Path) -> Iterator[tuple[str, str, bytes, str]]:
        """Split, id, picture and text of lines that are one word; the lines of a receipt are in one split.

        The same receipt, scanned or stored twice, is known by its company, date and total.
        """
        found = receipts.files(root)
        left = self.lines
        for name in sorted(found, key=lambda name: seed_for("real_words", "order", name)):
            receipt = receipts.read(name, found[name])
            told = [receipt.company, *(receipt.key.get(field, "") for field in ("date", "total"))]
            split = self._split(RECEIPTS, " ".join(told))
            with Image.open(receipt.image) as page:
                grey = page.convert("L")
            for number, (text, box) in enumerate(receipts.single_words(found[name])[:left]):
                yield split, f"{RECEIPTS}-{name}-{number}", _crop(grey, box), text
                left -= 1
            if not left:
                return


def _crop(page: Image.Image, box: list[float]) -> bytes:
    """The part of a page within a box, as JPEG, not higher than the other sets' pictures."""
    left, top, right, bottom = (share * side for share, side in zip(box, page.size * 2, strict=True))
    piece = page.crop((int(left), int(top), max(int(left) + 2, round(right)), max(int(top) + 2, round(bottom))))
    piece.thumbnail((piece.width, TALLEST))
    return jpeg(piece)


def _texts(root: Path, names: tuple[str, ...]) -> set[str]:
    return {_key(label) for name in names for _, _, label in crops(root / "scene_text" / name)}


def _key(label: bytes | None) -> str:
    """The letters and digits of a word, whatever its case."""
    return "".join(filter(str.isalnum, (label or b"").decode("utf-8", "replace").lower()))
