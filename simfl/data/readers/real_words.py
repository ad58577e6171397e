"""Real word images of five sources: scene text of four data sets, and lines of receipts.

IIIT5K (Mishra et al. 2012), SVT (Wang et al. 2011), ICDAR 2003 and 2013, and SROIE's lines (Huang et al. 2019), divided
by simfl: these are not the published splits. ICDAR 2003 and 2013 share photographs, so a word of 2013 is left out of
2003, which keeps the two from being in different splits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from simfl.constraints import Fraction, PositiveInt
from simfl.data.base import Data, Dataset
from simfl.data.io import records
from simfl.data.io.arrow_store import load_or_build
from simfl.data.io.images import encode_jpeg
from simfl.data.io.word_images import Alphabet, WordSplitBuilder, build_word_dataset
from simfl.data.readers.scene_text import read_crops
from simfl.data.readers.sroie_format import find_receipts, read_receipt, read_single_words
from simfl.errors import ConfigError
from simfl.images import read_image
from simfl.seeds import seed_for

VERSION = 1
SETS = {  # client -> its LMDB folders, whose official parts are pooled and divided again
    "IIIT5K": ("IIIT5K_train", "IIIT5K_test"),
    "SVT": ("SVT_train", "SVT_test"),
    "IC03": ("IC03_test",),
    "IC13": ("IC13_test",),
}
RECEIPTS = "SROIE"
MAX_HEIGHT = 48  # pixels of a receipt's line as stored


@dataclass(frozen=True)
class RealWords(Data):
    """Real words of five clients: IIIT5K, SVT, ICDAR 2003 and 2013, lines of SROIE; divided by simfl, by image."""

    path: str = "$SIMFL_REAL_DATA"  # folder with scene_text/ (LMDB folders) and sroie/; ~ and $VARIABLES are expanded
    valid: Fraction = 0.1  # share of each client's images for validation; of receipts, of whole receipts
    test: Fraction = 0.2  # share of each client's images for testing; of receipts, of whole receipts
    alphabet: Alphabet = "printable"  # words with other characters, such as blanks, are left out
    lines: PositiveInt = 4000  # of receipts, at most, from receipts in random order

    def load(self, cache: Path) -> Dataset:
        """Read the data set from the cache or its files."""
        if not self.valid + self.test < 1:
            raise ConfigError(f"data.valid, data.test: {self.valid}, {self.test} given, their sum must be below 1")
        root = records.resolve_folder(self.path)
        names = [name for folders in SETS.values() for name in folders]
        crops = [records.require(root, f"scene_text/{name}/data.mdb") for name in names]
        receipts = find_receipts(records.require(root, "sroie"))
        sources = [*crops, *(path for files in receipts.values() for path in files.values())]
        return load_or_build(cache, "real_words", VERSION, self, sources, lambda: self._build(root))

    def _build(self, root: Path) -> Dataset:
        builders = {split: WordSplitBuilder(self.alphabet) for split in ("train", "valid", "test")}
        for client, names in SETS.items():
            excluded = _labels(root, SETS["IC13"]) if client == "IC03" else set()
            for name in names:
                for number, image, label in read_crops(root / "scene_text" / name):
                    builder = builders[self._split(client, f"{name}-{number}")]
                    if _normalize(label) in excluded:
                        builder.dropped["in IC13 too"] += 1
                    else:
                        builder.add(f"{name}-{number}", image, label, client)
        for split, id, image, text in self._receipt_lines(root / "sroie"):
            builders[split].add(id, image, text, RECEIPTS)
        return build_word_dataset(
            "real_words", builders, "each source's own: research use; images reduced, divided by simfl"
        )

    def _split(self, client: str, image: str) -> str:
        draw = seed_for("real_words", client, image) % 10_000 / 10_000
        return "test" if draw < self.test else "valid" if draw < self.test + self.valid else "train"

    def _receipt_lines(self, root: Path) -> Iterator[tuple[str, str, bytes, str]]:
        """Yield split, id, image and text of lines of one word; the lines of a receipt belong to one split.

        The split is drawn from company, date and total, so two scans of one receipt belong to the same split.
        """
        found = find_receipts(root)
        num_left = self.lines
        for name in sorted(found, key=lambda name: seed_for("real_words", "order", name)):
            receipt = read_receipt(name, found[name])
            sale = [receipt.company, *(receipt.key.get(field, "") for field in ("date", "total"))]
            split = self._split(RECEIPTS, " ".join(sale))
            grey = read_image(receipt.image, "L", str(receipt.image))
            for number, (text, box) in enumerate(read_single_words(found[name])[:num_left]):
                yield split, f"{RECEIPTS}-{name}-{number}", _crop(grey, box), text
                num_left -= 1
            if not num_left:
                return


def _crop(page: Image.Image, box: list[float]) -> bytes:
    """Return the part of a page inside a box as JPEG, reduced to the height of the other sets' images."""
    left, top, right, bottom = (share * side for share, side in zip(box, page.size * 2, strict=True))
    crop = page.crop((int(left), int(top), max(int(left) + 2, round(right)), max(int(top) + 2, round(bottom))))
    crop.thumbnail((crop.width, MAX_HEIGHT))
    return encode_jpeg(crop)


def _labels(root: Path, names: tuple[str, ...]) -> set[str]:
    return {_normalize(label) for name in names for _, _, label in read_crops(root / "scene_text" / name)}


def _normalize(label: bytes | None) -> str:
    """Return the letters and digits of a word in lower case."""
    return "".join(filter(str.isalnum, (label or b"").decode("utf-8", "replace").lower()))
