"""The bundled benchmark for domain shift: one classification task on pictures from several sources.

Each client holds a domain, as with DomainNet in FedDAT (Chen et al. 2024) or with PACS (Li et al. 2017).
"""

from __future__ import annotations

import hashlib
import io
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import pyarrow as pa

from simfl.constraints import PositiveInt
from simfl.data.base import IMAGES, Data, Dataset, Split
from simfl.data.benchmarks.domains import digits, emoji
from simfl.data.benchmarks.domains.picture import DomainPicture
from simfl.data.benchmarks.picture_probe import linear_scores, majority_accuracy
from simfl.data.benchmarks.report import Range, check_ranges, report
from simfl.data.io.arrow_store import content_sha256, load_or_build
from simfl.data.io.tables import TableBuilder
from simfl.errors import ConfigError, nearest

VERSION = 1  # increased whenever the same settings give other pictures
EXAMPLES = IMAGES.append(pa.field("key", pa.string()))  # the emoji's code, or the digit's number in its source
CHECKED_FROM = 1000  # training pictures; the ranges are not checked for smaller builds
RANGES: dict[str, Range] = {"majority": (0, 0.35), "home": (0.1, 1), "shift": (0.03, 1)}
SPLITS = ("train", "valid", "test")


@dataclass(frozen=True)
class Domains(Data):
    """Emoji in four drawing styles (five classes), or digits from five sources (ten); needs simfl[benchmarks]."""

    kind: Literal["emoji", "digits"] = "emoji"  # the task
    domains: tuple[str, ...] = ()  # styles or sources to use; empty: all
    unseen: tuple[str, ...] = ()  # domains that are not trained on; their test pictures are the split `unseen`
    concepts: PositiveInt | None = None  # emoji: maximum number per class, 70 % of them to train; null: all
    train: PositiveInt = 1300  # digits: number of pictures per domain; at most 1,790 together with valid and test
    valid: PositiveInt = 200  # digits: number of pictures per domain
    test: PositiveInt = 290  # digits: number of pictures per domain
    image_size: PositiveInt = 32  # pixels, square, in colour
    seed: int = 1  # of concepts, splits and drawings
    example: ClassVar[Mapping[str, object]] = {"kind": "digits", "train": 60, "valid": 20, "test": 40, "image_size": 24}

    def load(self, cache: Path) -> Dataset:
        """Load the benchmark from the cache, or build and store it."""
        self._check()
        return load_or_build(
            cache, "domains", VERSION, self, self._files(), self.build, partial(report, group="domain")
        )

    def build(self) -> Dataset:
        """Build the benchmark. Raise DataError if its baselines are outside their ranges."""
        classes = sorted(set(emoji.CLASSES.values())) if self.kind == "emoji" else [str(d) for d in range(10)]
        tables = {name: TableBuilder(EXAMPLES) for name in SPLITS + (("unseen",) if self.unseen else ())}
        for split, picture in self._pictures():
            name = split if picture.domain not in self.unseen else "unseen" if split == "test" else None
            if name is not None:
                tables[name].add(**_row(picture, classes, self.image_size))
        splits = {name: Split(columns.table()) for name, columns in tables.items()}
        sources = hashlib.sha256(b"".join(path.read_bytes() for path in self._files())).hexdigest()
        digest = content_sha256(splits, also=f"{sources} {self.image_size}")
        card = self._card(splits, classes)
        if len(splits["train"]) >= CHECKED_FROM and len(set(self._chosen) - set(self.unseen)) > 1:
            check_ranges("domains", card["ranges"], RANGES)
        return Dataset("domains", splits, digest, card)

    @property
    def _all(self) -> tuple[str, ...]:
        return tuple(emoji.STYLES) if self.kind == "emoji" else digits.DOMAINS

    def _check(self) -> None:
        for name, given, known in (("domains", self.domains, self._all), ("unseen", self.unseen, self._chosen)):
            for value in given:
                if value not in known:
                    raise ConfigError(f"data.{name}: {value!r} given; {nearest(value, known)}")
        if set(self._chosen) <= set(self.unseen):
            raise ConfigError("data.unseen: at least one domain must remain to train on")
        if self.concepts is not None and self.concepts < 10:
            raise ConfigError(f"data.concepts: {self.concepts} given, at least 10 are needed: 7 train, 1 valid, 2 test")
        if self.kind == "digits" and self.train + self.valid + self.test > 1790:
            raise ConfigError(f"data.train: {self.train} + {self.valid} + {self.test} given, at most 1,790 together")

    @property
    def _chosen(self) -> tuple[str, ...]:
        return self.domains or self._all

    def _files(self) -> list[Path]:
        if self.kind == "digits":
            return [*(digits.source_file(name) for name in digits.SOURCES), *digits.handwriting_fonts()]
        codes = [code for code, _ in emoji.concepts()]
        named = [emoji.source_file(name) for name in ("names", "openmoji", "noto")]
        return [*named, *(emoji.source_file("twemoji").parent / f"{code}.png" for code in codes)]

    def _pictures(self) -> Iterator[tuple[str, DomainPicture]]:
        if self.kind == "emoji":
            for split, chosen in emoji.split_concepts(self.seed, self.concepts).items():
                for picture in emoji.draw(self._chosen, chosen, self.image_size):
                    yield split, picture
        else:
            sizes = [(name, getattr(self, name)) for name in SPLITS]
            yield from digits.draw(self._chosen, sizes, self.image_size, self.seed)

    def _card(self, splits: dict[str, Split], classes: list[str]) -> dict[str, Any]:
        train = splits["train"].examples
        baselines = {
            name: {
                "majority": {"accuracy": majority_accuracy(train, split.examples)},
                "informed": linear_scores(train, split.examples, len(classes)),
            }
            for name, split in splits.items()
            if name != "train"
        }
        table = emoji.SOURCES if self.kind == "emoji" else digits.SOURCES
        return {
            "licence": "of the sources, scaled and painted: "
            + "; ".join(sorted({licence for _, licence in table.values()})),
            "sources": sorted({f"{part.source}: {licence}" for part, licence in table.values()}),
            "shape": [3, self.image_size, self.image_size],
            "num_classes": len(classes),
            "classes": classes,
            "domains": {n: dict(sorted(Counter(s.examples["domain"].to_pylist()).items())) for n, s in splits.items()},
            "examples": {name: len(split) for name, split in splits.items()},
            "dropped": {},
            "baselines": baselines,
            "ranges": _ranges(baselines["test"]),
        }


def _ranges(scores: dict[str, Any]) -> dict[str, float]:
    """Return accuracies on test pictures: of the majority class, and two differences of the linear probe.

    `home` is the mean accuracy on the training domain minus that of the majority class; `shift` is the mean accuracy
    on the training domain minus that on other domains.
    """
    linear: dict[str, dict[str, float]] = scores["informed"]["trained on"]
    home = sum(found[name] for name, found in linear.items()) / len(linear)
    away = [score for name, found in linear.items() for other, score in found.items() if other != name]
    majority = scores["majority"]["accuracy"]
    return {"majority": majority, "home": home - majority, "shift": home - sum(away) / len(away) if away else 0.0}


def _row(picture: DomainPicture, classes: list[str], size: int) -> dict[str, object]:
    out = io.BytesIO()
    picture.image.save(out, format="PNG", compress_level=1)
    return {
        "id": f"{picture.domain}-{picture.key}",
        "image": out.getvalue(),
        "width": size,
        "height": size,
        "label": classes.index(picture.class_name),
        "class": picture.class_name,
        "domain": picture.domain,
        "key": picture.key,
    }
