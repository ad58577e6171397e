"""Scene text as LMDB, the layout of ASTER and most recognisers: words cropped from photographs.

Used by He et al. 2022 (FedOCR). Keys are `num-samples`, and from 1 on `image-%09d`, `label-%09d`, `lexicon-%09d`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from simfl.constraints import Count
from simfl.data.base import Data, Dataset, Published
from simfl.data.io import records
from simfl.data.io.gather import kept
from simfl.data.io.lmdb_folder import opened
from simfl.data.io.words import Alphabet, Words, finish
from simfl.errors import DataError

EDITION = 1


@dataclass(frozen=True)
class SceneText(Data):
    """Words cropped from photographs, in LMDB folders; each folder is a source, and may be a client."""

    path: str  # a folder with LMDB folders; ~ and $VARIABLES are followed
    train: tuple[str, ...] = ()  # names of LMDB folders
    valid: tuple[str, ...] = ()  # likewise
    test: tuple[str, ...] = ()  # likewise; without any name, folders are told apart by train, val and test in theirs
    alphabet: Alphabet = "any"  # words with other characters are left out; printable: ASTER's 94
    limit: Count | None = None  # at most so many of each folder, the first ones

    TRAIN: ClassVar[dict[str, int]] = {
        "Synth90k": 9_000_000,
        "SynthText": 800_000,
        "IC03": 1150,
        "IC13": 848,
        "IC15": 4426,
        "IIIT5K": 2000,
        "ArT": 30271,
        "COCO-Text": 31943,
    }
    TEST: ClassVar[dict[str, int]] = {
        "IIIT5K": 3000,
        "SVT": 647,
        "IC03": 860,
        "IC13": 1015,
        "IC15": 1811,
        "SVTP": 645,
        "CUTE": 288,
    }

    def load(self, cache: Path) -> Dataset:
        root = records.folder(self.path)
        chosen = self._chosen(root)
        sources = [folder / "data.mdb" for folders in chosen.values() for folder in folders]
        return kept(cache, "scene_text", EDITION, self, sources, lambda: self._build(chosen))

    def published(self) -> Published | None:
        """Folders are known by the names that theirs begin with: IC03_train is IC03."""
        known = {name: next((n for n in self.TRAIN if name.startswith(n)), None) for name in self.train}
        counts = {name: self.TRAIN[origin] for name, origin in known.items() if origin is not None}
        if not counts or len(counts) < len(self.train):
            return None
        counts = {name: min(count, self.limit or count) for name, count in counts.items()}
        return Published(sum(counts.values()), by={"source": counts})

    def _chosen(self, root: Path) -> dict[str, list[Path]]:
        """The folders of each split."""
        named = {split: list(getattr(self, split)) for split in ("train", "valid", "test")}
        if not any(named.values()):
            named = _guessed(root)
        chosen = {split: [root / name for name in names] for split, names in named.items() if names}
        for folder in (folder for folders in chosen.values() for folder in folders):
            if not (folder / "data.mdb").is_file():
                raise DataError(f"data.path: {folder} is no LMDB folder, it has no data.mdb")
        return chosen

    def _build(self, chosen: Mapping[str, list[Path]]) -> Dataset:
        lexicons = any(_has_lexicon(folder) for folders in chosen.values() for folder in folders)
        gathered = {split: Words(self.alphabet, lexicons) for split in chosen}
        for split, folders in chosen.items():
            for folder in folders:
                self._read(gathered[split], folder)
        return finish("scene_text", gathered, "each source's own: research use")

    def _read(self, words: Words, folder: Path) -> None:
        with opened(folder) as get:
            count = _number(folder, get(b"num-samples"))
            for i in range(1, min(count, self.limit or count) + 1):  # from 1
                image, label, lexicon = (get(b"%s-%09d" % (kind, i)) for kind in (b"image", b"label", b"lexicon"))
                candidates = lexicon.decode("utf-8", "replace").split() if lexicon else ()
                words.add(f"{folder.name}-{i}", image, label, folder.name, candidates)


def crops(folder: Path) -> Iterator[tuple[int, bytes | None, bytes | None]]:
    """Number, encoded picture and label of every word of an LMDB folder; None is what is not there."""
    with opened(folder) as get:
        for i in range(1, _number(folder, get(b"num-samples")) + 1):  # from 1
            yield i, get(b"image-%09d" % i), get(b"label-%09d" % i)


def _guessed(root: Path) -> dict[str, list[str]]:
    names = sorted(folder.name for folder in root.iterdir() if (folder / "data.mdb").is_file())
    if not names:
        raise DataError(f"data.path: {root} has no folder with a data.mdb")
    marks = {"train": "train", "valid": "val", "test": "test"}
    found: dict[str, list[str]] = {split: [] for split in marks}
    for name in names:
        split = next((split for split, mark in marks.items() if mark in name.lower()), None)
        if split is None:
            raise DataError(f"data.path: {root / name}: neither train, val nor test is in its name; give data.train, …")
        found[split].append(name)
    return found


def _number(folder: Path, value: bytes | None) -> int:
    if value is None or not value.isdigit():
        raise DataError(f"{folder}: num-samples is {value!r}, a number is needed")
    return int(value)


def _has_lexicon(folder: Path) -> bool:
    with opened(folder) as get:
        return get(b"lexicon-%09d" % 1) is not None
