"""Images listed with their classes, one list for each domain and split: DomainNet, PACS and others of that layout.

Peng et al. 2019 (DomainNet), Li et al. 2017 (PACS). A line of DOMAIN_SPLIT.txt is `DOMAIN/CLASS/FILE LABEL`; FILE may
contain spaces, and labels count from 0 or from 1.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from simfl.constraints import Fraction, PositiveInt
from simfl.data.base import Data, Dataset
from simfl.data.io import records
from simfl.data.io.arrow_store import load_or_build
from simfl.data.io.classification import LabeledImage, build_image_dataset
from simfl.data.io.images import MissingImages
from simfl.errors import ConfigError, DataError, nearest
from simfl.seeds import rng

VERSION = 1
SUFFIXES = {"train": ("train",), "valid": ("val", "crossval", "valid"), "test": ("test",)}
ListFiles = Mapping[str, Sequence[Path]]  # split -> its list files


@dataclass(frozen=True)
class ImageLists(Data):
    """Images of the same classes in several domains (DomainNet, PACS), by the lists of their releases."""

    path: str  # folder with DOMAIN_train.txt, DOMAIN_test.txt and the images; ~ and $VARIABLES are expanded
    images: str = ""  # folder that the listed names are relative to; empty: images/ if it exists, otherwise `path`
    domains: tuple[str, ...] = ()  # use only these domains; empty: all that have lists
    unseen: tuple[str, ...] = ()  # domains of which only the test list is used, as the split `unseen`
    classes: tuple[str, ...] = ()  # use only these classes, labelled in this order; empty: all, as listed
    per_class: PositiveInt | None = None  # limit of training images for each class and domain, drawn at random
    valid: Fraction = 0.1  # share of a domain's training images for validation, if there are no validation lists
    image_size: PositiveInt = 64  # images are stored in colour, resized to this many pixels square
    missing: MissingImages = "refuse"  # drop: leave out missing images

    DOMAINNET: ClassVar[dict[str, tuple[int, int]]] = {  # training and test images, cleaned
        "clipart": (33525, 14604),
        "infograph": (36023, 15582),
        "painting": (50416, 21850),
        "quickdraw": (120750, 51750),
        "real": (120906, 52041),
        "sketch": (48212, 20916),
    }
    PACS: ClassVar[dict[str, int]] = {"art_painting": 2048, "cartoon": 2344, "photo": 1670, "sketch": 3929}

    def load(self, cache: Path) -> Dataset:
        """Read the data set from the cache or its files."""
        root = records.resolve_folder(self.path)
        lists = self._find_lists(root)
        sources = [path for paths in lists.values() for path in paths]
        return load_or_build(cache, "image_lists", VERSION, self, sources, lambda: self._build(root, lists))

    def _find_lists(self, root: Path) -> dict[str, list[Path]]:
        found = {split: _lists_by_domain(root, suffixes) for split, suffixes in SUFFIXES.items()}
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

    def _build(self, root: Path, lists: ListFiles) -> Dataset:
        folder = root / self.images if self.images else records.find(root, "images") or root
        listed = {split: [i for path in paths for i in _read_list(path, folder)] for split, paths in lists.items()}
        splits = self._relabel(listed)
        if "valid" not in splits:
            splits["train"], splits["valid"] = _divide(splits["train"], self.valid)
        splits["train"] = self._subsample(splits["train"])
        valid = "official lists" if "valid" in lists else f"{self.valid:g} of each domain's training list"
        return build_image_dataset("image_lists", splits, self.image_size, self.missing, "academic use", valid=valid)

    def _relabel(self, splits: Mapping[str, list[LabeledImage]]) -> dict[str, list[LabeledImage]]:
        """Count labels from 0; DataError if a label has two class names, or a class two labels."""
        class_names: dict[int, str] = {}
        for image in (image for images in splits.values() for image in images):
            known = class_names.setdefault(image.label, image.class_name)
            if known != image.class_name:
                raise DataError(f"{image.where}: label {image.label} is {image.class_name!r}, elsewhere {known!r}")
        names = [class_names[label] for label in sorted(class_names)]
        if len(set(names)) < len(names):
            duplicate = next(name for name in names if names.count(name) > 1)
            raise DataError(f"data.path: the class {duplicate!r} has several labels")
        for name in self.classes:
            if name not in names:
                raise ConfigError(f"data.classes: the lists have no class {name!r}; {nearest(name, names)}")
        label_of = {name: i for i, name in enumerate(self.classes or names)}
        return {
            split: [replace(i, label=label_of[i.class_name]) for i in images if i.class_name in label_of]
            for split, images in splits.items()
        }

    def _subsample(self, images: list[LabeledImage]) -> list[LabeledImage]:
        """Return at most `per_class` images for each class and domain."""
        if self.per_class is None:
            return images
        groups = defaultdict(list)
        for image in images:
            groups[image.domain, image.class_name].append(image)
        drawn = {
            group[i].id
            for (domain, class_name), group in groups.items()
            for i in rng("image_lists", "few", domain, class_name).permutation(len(group))[: self.per_class]
        }
        return [image for image in images if image.id in drawn]


def _lists_by_domain(root: Path, suffixes: Sequence[str]) -> dict[str, Path]:
    """Return the list of each domain that has one with such a suffix."""
    found = {}
    for path in sorted(root.glob("*_*.txt")):
        domain, _, suffix = path.stem.rpartition("_")
        if suffix in suffixes:
            found[domain] = path
    return found


def _read_list(path: Path, folder: Path) -> Iterator[LabeledImage]:
    for where, line in records.read_lines(path):
        name, _, label = line.strip().rpartition(" ")
        parts = Path(name).parts
        if not label.isdigit() or len(parts) < 3:
            raise DataError(f"{where}: {line[:60]!r}, expected `DOMAIN/CLASS/FILE LABEL`")
        yield LabeledImage(where, name, records.inside(folder, name, where), int(label), parts[-2], parts[-3])


def _divide(images: Sequence[LabeledImage], share: float) -> tuple[list[LabeledImage], list[LabeledImage]]:
    """Divide images into training and validation; the share is drawn in each domain."""
    train: list[LabeledImage] = []
    valid: list[LabeledImage] = []
    for domain in sorted({image.domain for image in images}):
        own = [image for image in images if image.domain == domain]
        drawn = rng("image_lists", "valid", domain).permutation(len(own)) < share * len(own)
        for image, is_valid in zip(own, drawn.tolist(), strict=True):
            (valid if is_valid else train).append(image)
    return train, valid
