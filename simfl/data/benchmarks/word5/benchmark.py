"""The bundled benchmark for word recognition: five clients, each with its own kind of words, fonts and pictures.

Drawn words stand in for photographed ones as in MJSynth (Jaderberg et al. 2014); five clients as in FedOCR (He et al.
2020). A fifth of the words, and some fonts of every client, are in no training picture.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

import pyarrow as pa

from simfl.constraints import Count, Limit
from simfl.data.base import WORD_PICTURES, Data, Dataset, Split
from simfl.data.benchmarks.dice import Dice
from simfl.data.benchmarks.report import Range, hold, report
from simfl.data.benchmarks.word5 import baselines, lists
from simfl.data.benchmarks.word5.drawing import HEIGHT, WIDTH, draw
from simfl.data.benchmarks.word5.parts import CLIENTS, FONTS, PHOTOS, files
from simfl.data.benchmarks.word5.words import word
from simfl.data.io.arrow_store import content_sha256, stored
from simfl.data.io.drawing import jpeg
from simfl.data.io.gather import Columns
from simfl.data.io.processes import default_processes, make_all
from simfl.data.io.token_pieces import cut, join

EDITION = 1  # raised whenever the same settings give other pictures or words
SPLITS = ("train", "valid", "test", "test_font")
WORTH = 1500  # pictures; more are drawn by several processes
LARGE = 1000  # training pictures of a client; smaller builds are too small for the ranges below to mean anything
SCHEMA = pa.schema([*WORD_PICTURES, ("font", pa.string())])
MAKE = "simfl.data.benchmarks.word5.benchmark:make"
RANGES: dict[str, Range] = {  # on the split `test`
    "majority accuracy": (0.0, 0.01),
    "nearest accuracy": (0.0, 0.02),
    "nearest similarity": (0.0, 0.2),
}
Longest = Annotated[int, Limit("a whole number of at least 4", lambda n: n >= 4)]  # every kind has such words


@dataclass(frozen=True)
class Word5(Data):
    """Drawn words of five clients: print, sign, hand, receipt, night; needs zxcvbn, scikit-learn and fonts."""

    train: Count = 2000  # pictures of each client
    valid: Count = 200  # likewise
    test: Count = 400  # likewise; words that are in neither of the above
    test_font: Count = 400  # likewise; such words in fonts that are in no other split
    longest: Longest | None = None  # letters of a word, digits and marks counted; null: as the words come
    words: Literal["zxcvbn", "wamerican"] = "zxcvbn"  # wamerican: Debian's dictionary, to be installed by you
    seed: int = 1  # of everything

    def load(self, cache: Path) -> Dataset:
        """The benchmark from the cache, or made and kept there."""
        return stored(cache, "word5", EDITION, self, files(self.words), self.build, partial(report, group="source"))

    def build(self, processes: int | None = None) -> Dataset:
        """The benchmark, made now; the same with any number of processes (None: one a core, if worth it).

        DataError if it could be solved without reading.
        """
        sizes = {name: getattr(self, name) * len(CLIENTS) for name in SPLITS}
        total = sum(sizes.values())
        count = processes or default_processes(total, WORTH)
        bounds = [i * total // count for i in range(count + 1)]
        told = {"seed": self.seed, "sizes": sizes, "longest": self.longest, "words": self.words}
        jobs = [told | {"first": a, "last": b} for a, b in pairwise(bounds)]
        whole = join(make_all(MAKE, jobs, count))
        splits = dict(zip(SPLITS, cut(whole, list(sizes.values())), strict=True))
        card = self._card(splits)
        if self.train >= LARGE and self.longest is None:
            hold("word5", card["ranges"], RANGES)
        return Dataset("word5", splits, content_sha256(splits), card)

    def _card(self, splits: Mapping[str, Split]) -> dict[str, Any]:
        scores = {name: baselines.score(splits["train"], splits[name]) for name in SPLITS[1:]}
        test = scores["test"]
        fonts = sorted({font.told for known, held in FONTS.values() for font in (*known, *held)})
        return {
            "licence": f"Apache-2.0; {lists.LICENCES[self.words]}; photographs CC BY 2.0; "
            "fonts SIL OFL 1.1 or Apache-2.0",
            "sources": [lists.told(self.words), PHOTOS[0].told, *fonts],
            "words": {name: len(split) for name, split in splits.items()},
            "different words": {name: len(set(split.examples["text"].to_pylist())) for name, split in splits.items()},
            "clients": {name: dict(Counter(split.examples["source"].to_pylist())) for name, split in splits.items()},
            "dropped": {},
            "baselines": scores,
            "ranges": {
                "majority accuracy": test["majority"]["accuracy"],
                "nearest accuracy": test["nearest"]["accuracy"],
                "nearest similarity": test["nearest"]["similarity"],
            },
        }


def make(told: Mapping[str, Any]) -> Split:
    """The pictures `first` to `last` of all: split after split, client after client."""
    places = [
        (split, client, number)
        for split, size in told["sizes"].items()
        for client in CLIENTS
        for number in range(size // len(CLIENTS))
    ]
    columns = Columns(SCHEMA)
    for split, client, number in places[told["first"] : told["last"]]:
        dice = Dice("word5", told["seed"], client, split, number)
        text = word(client, dice, split in ("test", "test_font"), told["longest"], told["words"])
        font = dice.pick(FONTS[client][split == "test_font"])
        picture = draw(client, text, font.path("word5"), dice)
        columns.add(
            id=f"{client}-{split}-{number}", image=jpeg(picture), width=WIDTH, height=HEIGHT, text=text, source=client,
            font=font.file.removeprefix("files/").removesuffix(".ttf"),
        )  # fmt: skip
    return Split(columns.table())
