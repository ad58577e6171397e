"""Pictures with lists of their classes, one list for each domain and split: DomainNet, PACS and others of that layout.

Peng et al. 2019 (DomainNet), Li et al. 2017 (PACS). A line of DOMAIN_SPLIT.txt is `DOMAIN/CLASS/FILE LABEL`; FILE may
hold spaces, and labels count from 0 or from 1.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from simfl.constraints import Count, Fraction
from simfl.data.base import Data, Dataset
from simfl.data.io import records
from simfl.data.io.gather import Missing, kept
from simfl.data.readers.labelled_images import Labelled, dataset
from simfl.errors import ConfigError, DataError, nearest
from simfl.seeds import rng

EDITION = 1
SUFFIXES = {"train": ("train",), "valid": ("val", "crossval", "valid"), "test": ("test",)}
Lists = Mapping[str, Sequence[Path]]


@dataclass(frozen=True)
class ImageLists(Data):
    """Pictures of the same classes in several domains (DomainNet, PACS), by the lists that come with them."""

    path: str  # a folder with DOMAIN_train.txt, DOMAIN_test.txt and the pictures; ~ and $VARIABLES are followed
    images: str = ""  # the folder that the lists' names start from; empty: images/ if there is one, else `path`
    domains: tuple[str, ...] = ()  # only these; none: all that have lists
    unseen: tuple[str, ...] = ()  # of these only the test list is used, as the split `unseen`
    classes: tuple[str, ...] = ()  # only these, numbered in this order; none: all, as the lists number them
    per_class: Count | None = (
        None  # at most so many training pictures of each class and domain, drawn by the set's name
    )
    valid: Fraction = 0.1  # where there are no lists for validation: the share of a domain's training pictures
    image_size: Count = 64  # pictures are stored in colour, squeezed to this many pixels square
    missing: Missing = "refuse"  # drop: leave out pictures that are not there

    DOMAINNET: ClassVar[dict[str, tuple[int, int]]] = {  # training and test pictures, cleaned
        "clipart": (33525, 14604),
        "infograph": (36023, 15582),
        "painting": (50416, 21850),
        "quickdraw": (120750, 51750),
        "real": (120906, 52041),
        "sketch": (48212, 20916),
    }
    PACS: ClassVar[dict[str, int]] = {"art_painting": 2048, "cartoon": 2344, "photo": 1670, "sketch": 3929}

    def load(self, cache: Path) -> Dataset:
        root = records.folder(self.path)
        lists = self._lists(root)
        sources = [path for paths in lists.values() for path in paths]
        return kept(cache, "image_lists", EDITION, self, sources, lambda: self._build(root, lists))

    def _lists(self, root: Path) -> dict[str, list[Path]]:
        found = {split: _domains(root, names) for split, names in SUFFIXES.items()}
        known = found["train"] | found["test"]
        for name in (*self.domains, *self.unseen):
            if name not in known:
                raise ConfigError(f"data.domains: {root} has no lists of {name!r}; {nearest(name, known)}")
        seen = [name for name in (self.domains or sorted(known)) if name not in self.unseen]
        lists = {split: [paths[name] for name in seen if name in paths] for split, paths in found.items()}
        lists["unseen"] = [found["test"][name] for name in self.unseen if name in found["test"]]
        if not lists["train"]:
            raise DataError(f"data.path: {root} has no list DOMAIN_train.txt")
        return {split: paths for split, paths in lists.items() if paths}

    def _build(self, root: Path, lists: Lists) -> Dataset:
        folder = root / self.images if self.images else records.found(root, "images") or root
        told = {split: [one for path in paths for one in _read(path, folder)] for split, paths in lists.items()}
        told = self._numbered(told)
        if "valid" not in told:
            told["train"], told["valid"] = _part(told["train"], self.valid)
        told["train"] = self._few(told["train"])
        card = {"valid": "official lists" if "valid" in lists else f"{self.valid:g} of each domain's training list"}
        return dataset("image_lists", told, self.image_size, self.missing, "academic use", **card)

    def _numbered(self, told: Mapping[str, list[Labelled]]) -> dict[str, list[Labelled]]:
        """Labels from 0; DataError if a label has two class names, or a class two labels."""
        kinds: dict[int, str] = {}
        for one in (one for pictures in told.values() for one in pictures):
            if kinds.setdefault(one.label, one.kind) != one.kind:
                raise DataError(f"{one.where}: label {one.label} is {one.kind!r}, elsewhere {kinds[one.label]!r}")
        names = [kinds[label] for label in sorted(kinds)]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise DataError(f"data.path: the class {twice!r} has several labels")
        for name in self.classes:
            if name not in names:
                raise ConfigError(f"data.classes: the lists have no class {name!r}; {nearest(name, names)}")
        number = {name: i for i, name in enumerate(self.classes or names)}
        return {
            split: [replace(one, label=number[one.kind]) for one in pictures if one.kind in number]
            for split, pictures in told.items()
        }

    def _few(self, pictures: list[Labelled]) -> list[Labelled]:
        if self.per_class is None:
            return pictures
        groups = defaultdict(list)
        for one in pictures:
            groups[one.domain, one.kind].append(one)
        chosen = {
            group[i].id
            for (domain, kind), group in groups.items()
            for i in rng("image_lists", "few", domain, kind).permutation(len(group))[: self.per_class]
        }
        return [one for one in pictures if one.id in chosen]


def _domains(root: Path, suffixes: Sequence[str]) -> dict[str, Path]:
    """The list of each domain that has one ending so."""
    found = {}
    for path in sorted(root.glob("*_*.txt")):
        domain, _, suffix = path.stem.rpartition("_")
        if suffix in suffixes:
            found[domain] = path
    return found


def _read(path: Path, folder: Path) -> Iterator[Labelled]:
    for where, line in records.lines(path):
        name, _, label = line.strip().rpartition(" ")
        parts = Path(name).parts
        if not label.isdigit() or len(parts) < 3:
            raise DataError(f"{where}: {line[:60]!r}, `DOMAIN/CLASS/FILE LABEL` is needed")
        yield Labelled(where, name, folder / name, int(label), parts[-2], parts[-3])


def _part(pictures: Sequence[Labelled], share: float) -> tuple[list[Labelled], list[Labelled]]:
    """The training pictures, and the share of each domain that is drawn for validation."""
    kept: list[Labelled] = []
    apart: list[Labelled] = []
    for domain in sorted({one.domain for one in pictures}):
        mine = [one for one in pictures if one.domain == domain]
        few = rng("image_lists", "valid", domain).permutation(len(mine)) < share * len(mine)
        for one, chosen in zip(mine, few.tolist(), strict=True):
            (apart if chosen else kept).append(one)
    return kept, apart
