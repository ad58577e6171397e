"""Images in folders named by split, domain and class."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from simfl.constraints import Fraction, PositiveInt
from simfl.data.base import Data, Dataset, split_name
from simfl.data.io import records
from simfl.data.io.arrow_store import load_or_build
from simfl.data.io.classification import LabeledImage, build_image_dataset
from simfl.data.io.table_files import SPLIT_FOLDERS, metadata_files
from simfl.data.readers.table import Table
from simfl.errors import ConfigError, DataError
from simfl.seeds import rng

VERSION = 1
SPLITS = ("train", "valid", "test", "unseen")
SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".gif", ".ppm")
Layout = Literal["class", "domain/class", "split/class", "split/domain/class"]


@dataclass(frozen=True)
class ImageFolder(Data):
    """Images in folders named by their class, and by their split and domain, or described by a file metadata.csv."""

    path: str  # top folder; ~ and $VARIABLES are expanded
    layout: Layout = "class"  # meaning of the folder levels, from the top
    valid: Fraction = 0.1  # share of each domain and class for validation, if no folder names the split
    test: Fraction = 0.2  # share of each domain and class for testing, if no folder names the split
    image_size: PositiveInt = 64  # images are stored in colour, resized to this many pixels square

    def load(self, cache: Path) -> Dataset:
        """Read the data set from the cache or its files."""
        if self.valid + self.test >= 1:
            raise ConfigError(f"data.valid, data.test: {self.valid}, {self.test} given, their sum must be below 1")
        root = records.resolve_folder(self.path)
        if (described := self._described(root)) is not None:
            return described.load(cache)
        found = list(self._find_images(root))
        if not found:
            raise DataError(f"data.path: {root} has no images in folders {self.layout}{layout_hint(root)}")
        sources = [image.path for _, image in found]
        return load_or_build(cache, "image_folder", VERSION, self, sources, lambda: self._build(found))

    def preview(self, cache: Path) -> Dataset:
        """Read the data set without checking its values; nothing is stored but images without metadata."""
        described = self._described(records.resolve_folder(self.path))
        return self.load(cache) if described is None else described.preview(cache)

    def _described(self, root: Path) -> Table | None:
        """Return the reader of a folder whose images a metadata file describes; None without such a file.

        Raises:
            ConfigError: The layout has domains, which a metadata file gives in a column.
        """
        if not (files := metadata_files(root)):
            return None
        if "domain" in self.layout:
            first = next(iter(files.values()))[0]
            raise ConfigError(f"data.layout: {self.layout!r} given, but {first} describes the images; allowed: class")
        return Table(self.path, image_size=self.image_size, valid=self.valid, test=self.test)

    def _find_images(self, root: Path) -> Iterator[tuple[str, LabeledImage]]:
        """Yield the images in the order of their names, each with its split, which is empty if no folder names it."""
        levels = self.layout.split("/")
        names = sorted(p.relative_to(root).as_posix() for p in root.glob("*/" * len(levels) + "*"))
        images = [name for name in names if Path(name).suffix.lower() in SUFFIXES and not (root / name).is_dir()]
        for name in images:
            _require_file(root, name)
        class_names = sorted({Path(name).parts[len(levels) - 1] for name in images})
        label_of = {class_name: label for label, class_name in enumerate(class_names)}
        for name in images:
            folders = dict(zip(levels, Path(name).parts, strict=False))
            split = folders.get("split")
            if split is not None and split_name(split) not in SPLITS:
                raise DataError(f"data.path: {root / split} is not a split, allowed: {', '.join(SPLITS)}")
            class_name = folders["class"]
            image = LabeledImage(name, name, root / name, label_of[class_name], class_name, folders.get("domain", ""))
            yield split_name(split) if split else "", image

    def _build(self, found: list[tuple[str, LabeledImage]]) -> Dataset:
        splits: dict[str, list[LabeledImage]] = {"train": []}
        groups: dict[tuple[str, str], list[LabeledImage]] = {}
        for split, image in found:
            if split:
                splits.setdefault(split, []).append(image)
            else:
                groups.setdefault((image.domain, image.class_name), []).append(image)
        for (domain, class_name), images in groups.items():
            ranks = rng("image_folder", "split", domain, class_name).permutation(len(images)).tolist()
            num_test, num_valid = (round(share * len(images)) for share in (self.test, self.valid))
            for rank, image in zip(ranks, images, strict=True):
                split = "test" if rank < num_test else "valid" if rank < num_test + num_valid else "train"
                splits.setdefault(split, []).append(image)
        return build_image_dataset("image_folder", splits, self.image_size, "refuse", "the images' own")


def found_layout(root: Path) -> Layout | None:
    """Return the layout that the folders of images seem to have; None without images in folders."""
    for levels in (1, 2, 3):
        images = (p for p in root.glob("*/" * levels + "*") if p.suffix.lower() in SUFFIXES)
        first = next(images, None)
        if first is not None:
            has_splits = first.relative_to(root).parts[0].lower() in SPLIT_FOLDERS
            of_levels: dict[int, tuple[Layout, Layout]] = {
                1: ("class", "class"),
                2: ("domain/class", "split/class"),
                3: ("split/domain/class", "split/domain/class"),
            }
            return of_levels[levels][has_splits]
    return None


def layout_hint(root: Path) -> str:
    """Return a hint for an error message: the layout that the folders seem to have."""
    found = found_layout(root)
    return f"; its folders look like layout: {found}" if found else ""


def _require_file(root: Path, name: str) -> None:
    """Raise DataError for a name that is not UTF-8, a broken link, or a special file such as a pipe."""
    path = root / name
    try:
        name.encode()
    except UnicodeEncodeError:
        raise DataError(f"data.path: {root}: the file name {os.fsencode(name)!r} is not UTF-8; rename it") from None
    if path.is_symlink() and not path.exists():
        raise DataError(f"{path}: a broken link to {os.readlink(path)}")
    if not path.is_file():
        raise DataError(f"{path}: not a regular file")
