"""Scene text as LMDB, the layout of ASTER and most recognition models: words cropped from photographs.

Used by He et al. 2022 (FedOCR). Keys are `num-samples`, and from 1 on `image-%09d`, `label-%09d`, `lexicon-%09d`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from simfl.constraints import PositiveInt
from simfl.data.base import Data, Dataset, Published
from simfl.data.io import records
from simfl.data.io.arrow_store import load_or_build
from simfl.data.io.word_images import Alphabet, WordSplitBuilder, build_word_dataset
from simfl.errors import DataError

VERSION = 1
MARKS = {"train": "train", "valid": "val", "test": "test"}  # split -> part of a folder's name


@dataclass(frozen=True)
class SceneText(Data):
    """Words cropped from photographs, in LMDB folders; each folder is a source, and may be a client."""

    path: str  # folder that contains the LMDB folders; ~ and $VARIABLES are expanded
    train: tuple[str, ...] = ()  # names of the training folders
    valid: tuple[str, ...] = ()  # names of the validation folders
    test: tuple[str, ...] = ()  # names of the test folders; if no name is given, names contain train, val or test
    alphabet: Alphabet = "any"  # words with other characters are left out; printable: ASTER's 94
    limit: PositiveInt | None = None  # read only the first so many words of each folder

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
        """Read the data set from the cache or its files."""
        folders = self._find_folders(records.resolve_folder(self.path))
        sources = [folder / "data.mdb" for paths in folders.values() for folder in paths]
        return load_or_build(cache, "scene_text", VERSION, self, sources, lambda: self._build(folders))

    def published(self) -> Published | None:
        """Return the published sizes of the training folders, matched by the start of their names (IC03_train)."""
        matched = {name: next((n for n in self.TRAIN if name.startswith(n)), None) for name in self.train}
        counts = {name: self.TRAIN[origin] for name, origin in matched.items() if origin is not None}
        if not counts or len(counts) < len(self.train):
            return None
        counts = {name: min(count, self.limit or count) for name, count in counts.items()}
        return Published(sum(counts.values()), by={"source": counts})

    def _find_folders(self, root: Path) -> dict[str, list[Path]]:
        """Return the LMDB folders of each split."""
        named = {split: list(getattr(self, split)) for split in ("train", "valid", "test")}
        if not any(named.values()):
            named = _guess_splits(root)
        folders = {split: [root / name for name in names] for split, names in named.items() if names}
        for folder in (folder for paths in folders.values() for folder in paths):
            if not (folder / "data.mdb").is_file():
                raise DataError(f"data.path: {folder} is not an LMDB folder, it has no data.mdb")
        return folders

    def _build(self, folders: Mapping[str, list[Path]]) -> Dataset:
        lexicons = any(_has_lexicon(folder) for paths in folders.values() for folder in paths)
        builders = {split: WordSplitBuilder(self.alphabet, lexicons) for split in folders}
        for split, paths in folders.items():
            for folder in paths:
                self._add_folder(builders[split], folder)
        return build_word_dataset("scene_text", builders, "each source's own: research use")

    def _add_folder(self, builder: WordSplitBuilder, folder: Path) -> None:
        with records.open_lmdb(folder) as get:
            count = _parse_count(folder, get(b"num-samples"))
            for i in range(1, min(count, self.limit or count) + 1):  # keys count from 1
                image, label, lexicon = (get(b"%s-%09d" % (kind, i)) for kind in (b"image", b"label", b"lexicon"))
                candidates = lexicon.decode("utf-8", "replace").split() if lexicon else ()
                builder.add(f"{folder.name}-{i}", image, label, folder.name, candidates)


def read_crops(folder: Path) -> Iterator[tuple[int, bytes | None, bytes | None]]:
    """Yield the number, the encoded image and the label of each word of an LMDB folder; None if a key is missing."""
    with records.open_lmdb(folder) as get:
        for i in range(1, _parse_count(folder, get(b"num-samples")) + 1):  # keys count from 1
            yield i, get(b"image-%09d" % i), get(b"label-%09d" % i)


def _guess_splits(root: Path) -> dict[str, list[str]]:
    names = sorted(folder.name for folder in root.iterdir() if (folder / "data.mdb").is_file())
    if not names:
        raise DataError(f"data.path: {root} has no folder with a data.mdb")
    found: dict[str, list[str]] = {split: [] for split in MARKS}
    for name in names:
        split = next((split for split, mark in MARKS.items() if mark in name.lower()), None)
        if split is None:
            raise DataError(
                f"data.path: the name of {root / name} contains neither train, val nor test; give data.train, …"
            )
        found[split].append(name)
    return found


def _parse_count(folder: Path, value: bytes | None) -> int:
    if value is None or not value.isdigit():
        raise DataError(f"{folder}: num-samples is {value!r}, expected a number")
    return int(value)


def _has_lexicon(folder: Path) -> bool:
    with records.open_lmdb(folder) as get:
        return get(b"lexicon-%09d" % 1) is not None
