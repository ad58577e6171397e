"""The bundled benchmark for shifted domains: one classification task, pictures from several sources.

Clients hold domains, as DomainNet's in FedDAT (Chen et al. 2024) or PACS's (Li et al. 2017).
"""

from __future__ import annotations

import hashlib
import io
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from simfl.constraints import Count
from simfl.data.base import PICTURES, Data, Dataset, Split
from simfl.data.benchmarks.domains import digits, emoji, probe
from simfl.data.benchmarks.domains.picture import Drawn
from simfl.data.benchmarks.report import Range, hold, report
from simfl.data.io.arrow_store import content_sha256, stored
from simfl.data.io.gather import Columns
from simfl.errors import ConfigError, nearest

EDITION = 1  # raised whenever the same settings give other pictures
EXAMPLES = PICTURES.append(pa.field("key", pa.string()))  # the emoji's code, or the digit's number in its source
LARGE = 1000  # training pictures; below this ranges are not held
RANGES: dict[str, Range] = {"majority": (0, 0.35), "home": (0.1, 1), "shift": (0.03, 1)}
SPLITS = ("train", "valid", "test")


@dataclass(frozen=True)
class Domains(Data):
    """Emoji in four drawing styles (five classes), or digits from five sources (ten); needs simfl[pictures]."""

    kind: Literal["emoji", "digits"] = "emoji"  # which of the two
    domains: tuple[str, ...] = ()  # which styles or sources; none: all
    unseen: tuple[str, ...] = ()  # domains of which nobody trains: their test pictures are the split `unseen`
    concepts: Count | None = None  # emoji: at most so many a class, 70 % to train; null: all
    train: Count = 1300  # digits: pictures of each domain; at most 1,790 with the other two
    valid: Count = 200  # digits: likewise
    test: Count = 290  # digits: likewise
    image_size: Count = 32  # pixels, square, in colour
    seed: int = 1  # of everything

    def load(self, cache: Path) -> Dataset:
        """The benchmark from the cache, or made and kept there."""
        self._check()
        return stored(cache, "domains", EDITION, self, self._sources(), self.build, partial(report, group="domain"))

    def build(self) -> Dataset:
        """The benchmark, made now."""
        classes = sorted(set(emoji.CLASSES.values())) if self.kind == "emoji" else [str(d) for d in range(10)]
        tables = {name: Columns(EXAMPLES) for name in SPLITS + (("unseen",) if self.unseen else ())}
        for split, one in self._pictures():
            name = split if one.domain not in self.unseen else "unseen" if split == "test" else None
            if name is not None:
                tables[name].add(**_row(one, classes, self.image_size))
        splits = {name: Split(columns.table()) for name, columns in tables.items()}
        sources = hashlib.sha256(b"".join(path.read_bytes() for path in self._sources())).hexdigest()
        digest = content_sha256(splits, also=f"{sources} {self.image_size}")
        card = self._card(splits, classes)
        if len(splits["train"]) >= LARGE and len(set(self._chosen) - set(self.unseen)) > 1:
            hold("domains", card["ranges"], RANGES)
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
            raise ConfigError("data.unseen: one domain to train on is needed")
        if self.concepts is not None and self.concepts < 10:
            raise ConfigError(f"data.concepts: {self.concepts} given, at least 10: 7 to train, 1 valid, 2 to test")
        if self.kind == "digits" and self.train + self.valid + self.test > 1790:
            raise ConfigError(f"data.train: {self.train} + {self.valid} + {self.test} given, at most 1,790 together")

    @property
    def _chosen(self) -> tuple[str, ...]:
        return self.domains or self._all

    def _sources(self) -> list[Path]:
        if self.kind == "digits":
            return [*(digits.place(name) for name in digits.SOURCES), *digits.hands()]
        codes = [code for code, _ in emoji.concepts()]
        named = [emoji.place(name) for name in ("names", "openmoji", "noto")]
        return [*named, *(emoji.place("twemoji").parent / f"{code}.png" for code in codes)]

    def _pictures(self) -> Iterator[tuple[str, Drawn]]:
        if self.kind == "emoji":
            for split, chosen in emoji.dealt(self.seed, self.concepts).items():
                for one in emoji.draw(self._chosen, chosen, self.image_size):
                    yield split, one
        else:
            sizes = [(name, getattr(self, name)) for name in SPLITS]
            yield from digits.draw(self._chosen, sizes, self.image_size, self.seed)

    def _card(self, splits: dict[str, Split], classes: list[str]) -> dict[str, Any]:
        train = splits["train"].examples
        baselines = {
            name: {
                "majority": {"accuracy": probe.majority(train, split.examples)},
                "informed": probe.linear(train, split.examples, len(classes)),
            }
            for name, split in splits.items()
            if name != "train"
        }
        table = emoji.SOURCES if self.kind == "emoji" else digits.SOURCES
        return {
            "licence": "of the sources, scaled and painted: "
            + "; ".join(sorted({licence for _, licence in table.values()})),
            "sources": sorted({f"{part.told}: {licence}" for part, licence in table.values()}),
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
    """Of the test pictures: how far the linear look at home beats the majority, and itself abroad."""
    linear: dict[str, dict[str, float]] = scores["informed"]["trained on"]
    home = sum(found[name] for name, found in linear.items()) / len(linear)
    away = [score for name, found in linear.items() for other, score in found.items() if other != name]
    majority = scores["majority"]["accuracy"]
    return {"majority": majority, "home": home - majority, "shift": home - sum(away) / len(away) if away else 0.0}


def _row(one: Drawn, classes: list[str], size: int) -> dict[str, object]:
    out = io.BytesIO()
    one.image.save(out, format="PNG", compress_level=1)
    return {
        "id": f"{one.domain}-{one.key}",
        "image": out.getvalue(),
        "width": size,
        "height": size,
        "label": classes.index(one.kind),
        "class": one.kind,
        "domain": one.domain,
        "key": one.key,
    }
