"""Data sets of the user: anything with a length whose items are (x, y) or mappings, such as torch's data sets.

They are read once, by the process that starts the run, checked, and stored as Arrow files in the cache under a hash of
their content; workers memory-map these files. With several machines the cache must be on a shared file system.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from simfl import imports
from simfl.constraints import PositiveInt
from simfl.data.base import Data, Dataset, Split, split_name
from simfl.data.classes import FROM_TRAIN, Classes, find_classes, with_names
from simfl.data.io.arrow_store import content_sha256, is_stored, read_dataset, write_dataset
from simfl.data.io.own_documents import build_documents, conform, has_documents
from simfl.data.io.own_items import FeatureType, described_error, encode_images, read_columns, to_table
from simfl.data.soundness import IMAGES, require_sound
from simfl.errors import DataError, SimflError
from simfl.images import measure_image

VERSION = 2  # of the stored form; part of the folder's name


@dataclass(frozen=True)
class Own(Data):
    """Your own data set: the result of `package.module:function`, or from Python the data themselves."""

    of: object  # package.module:function, which returns {split: items} or the items of train
    settings: Mapping[str, object] = field(default_factory=dict)  # keyword arguments of the function
    classes: PositiveInt | tuple[str, ...] | None = None  # number or names of the classes; null: those of train
    sha256: str | None = None  # written by simfl for data given from Python: hash of their content
    example: ClassVar[Mapping[str, object]] = {"of": "simfl.data.readers.own:example_rows"}

    def load(self, cache: Path) -> Dataset:
        """Read the items and store them in the cache; data given from Python are found there again by their hash."""
        folder = None if self.sha256 is None else _folder(cache, self.sha256)
        if folder is not None and is_stored(folder):
            return read_dataset(folder)
        if isinstance(self.of, str) and self.of.startswith(imports.OBJECT):
            raise DataError(f"data: {folder} with the data of {self.of} is missing; {imports.AGAIN}")
        dataset = self.read()
        folder = _folder(cache, dataset.sha256)
        if not is_stored(folder):
            require_sound(dataset, decode=IMAGES)
            write_dataset(folder, dataset)
        vars(self)["_sha256"] = dataset.sha256
        return read_dataset(folder)

    def read(self) -> Dataset:
        """Read the items without checking their values."""
        made = imports.resolve(self.of, "data.of")
        if isinstance(made, type) or (callable(made) and not hasattr(made, "__getitem__")):
            made = self._called(made)
        if isinstance(made, Dataset):
            return _conform_dataset(made, self.classes)
        items_of = _by_split(made)
        declared = self.classes or _class_names(items_of["train"])
        parts = {name: build_split(items, f"data, split {name}") for name, items in items_of.items()}
        _check_features({name: features for name, (_, features) in parts.items()})
        splits, card = _with_classes({name: split for name, (split, _) in parts.items()}, declared)
        features = next(iter(parts.values()))[1]
        shape = _image_shape(splits) if features is None else features.shape
        card = {"examples": {name: len(part) for name, part in splits.items()}, **card}
        card |= {"shape": list(shape)} if shape else {}
        return Dataset("own", splits, _sha256(splits, declared), card)

    def _called(self, function: Callable[..., object]) -> object:
        """Call the user's function; its errors become one line that names their place."""
        try:
            return imports.call(function, self.settings, "data")
        except SimflError:
            raise
        except Exception as error:
            raise DataError(f"data: {imports.reference(self.of)}: {described_error(error)}") from error

    def preview(self, cache: Path) -> Dataset:
        """Read the items without checking their values; nothing is stored."""
        return self.read()

    def plain(self) -> dict[str, object]:
        """Return the settings as an experiment file contains them."""
        of = imports.reference(self.of)
        sha256 = self._sha256 if of.startswith(imports.OBJECT) else None
        return {"of": of, "settings": self.settings, "classes": self.classes, "sha256": sha256}

    @cached_property
    def _sha256(self) -> str:
        return self.sha256 or self.read().sha256

    def __getstate__(self) -> dict[str, object]:
        """Return the state for another process: the hash of the cached data, never the data."""
        known = vars(self).get("_sha256") or self.sha256
        if not known:
            return dict(vars(self))
        return {"of": imports.reference(self.of), "settings": self.settings, "classes": self.classes, "sha256": known}


def wrap(value: object) -> Data | None:
    """Return data that are given in place of a name as a component; None for any other value."""
    if isinstance(value, Mapping):
        return Own(value) if "train" in value else None
    is_sequence = hasattr(value, "__getitem__") and hasattr(value, "__len__")
    return Own(value) if is_sequence or callable(value) else None


def build_split(items: object, where: str) -> tuple[Split, FeatureType | None]:
    """Return the items of a split as tables, and the type of their features.

    Args:
        items: A Split, a pair of arrays (X, y), a mapping of columns, or a sequence of (x, y) or mappings.
        where: The split, for error messages.

    Raises:
        DataError: The items cannot be read.
    """
    if isinstance(items, Split):
        return conform(items, where), None
    columns = encode_images(read_columns(items, where), where)
    if has_documents(columns):
        return build_documents(columns, where), None
    table, features = to_table(columns, where)
    return Split(table), features


def _by_split(made: object) -> dict[str, object]:
    """Return the items of each split by simfl's name of the split; DataError for two of one name."""
    if not (isinstance(made, Mapping) and "train" in made):
        return {"train": made}
    found: dict[str, object] = {}
    for name, items in made.items():
        split = split_name(str(name))
        if split in found:
            raise DataError(f"data: {name!r} is a second split {split!r}; rename one of them")
        found[split] = items
    return found


def _class_names(items: object) -> tuple[str, ...] | None:
    """Return the names of the classes that items of the library `datasets` declare; None without any."""
    features = getattr(items, "features", None)
    names = getattr(features.get("label"), "names", None) if isinstance(features, Mapping) else None
    return tuple(map(str, names)) if names else None


def _folder(cache: Path, sha256: str) -> Path:
    return cache / f"own-{VERSION}-{sha256[:16]}"


def _sha256(splits: Mapping[str, Split], declared: int | tuple[str, ...] | None) -> str:
    """Return the hash of the content, and of the classes that are declared."""
    return content_sha256(splits, also="" if declared is None else repr(declared), exclude=())


def _image_shape(splits: Mapping[str, Split]) -> tuple[int, ...] | None:
    """Return the shape of all images; None without images or if their sizes differ."""
    tables = [split.examples for split in splits.values() if split.documents is None]
    images = [image for table in tables if "image" in table.column_names for image in table["image"].to_pylist()]
    try:
        sizes = {measure_image(image, "") for image in images if image is not None}
    except DataError:  # a damaged image, which the check of the data set finds
        return None
    return (3, *next(iter(sizes))[::-1]) if len(sizes) == 1 else None


def _check_features(features: Mapping[str, FeatureType | None]) -> None:
    """Raise DataError where the features of the splits have different shapes or scales."""
    if len({one and one.shape for one in features.values()}) > 1:
        shapes = ", ".join(str(one and one.shape) for one in features.values())
        raise DataError(f"data: examples of the splits have different shapes: {shapes}")
    scaled = [name for name, one in features.items() if one is not None and one.is_uint8]
    if scaled and len(scaled) < len(features):
        other = next(name for name in features if name not in scaled)
        raise DataError(
            f"data: features of split {scaled[0]} are uint8, which is scaled to [0, 1], of {other} they are not"
        )


def _with_classes(
    splits: dict[str, Split], declared: int | tuple[str, ...] | None
) -> tuple[dict[str, Split], dict[str, object]]:
    """Return the splits with the names of their classes, and what the card says about classes.

    Labels that are no classes stay as they are: an objective that reads classes refuses them.
    """
    labelled = {n: s for n, s in splits.items() if s.documents is None and "label" in s.examples.column_names}
    of_train = {name: split for name, split in labelled.items() if name == "train"}  # others may withhold labels
    found = find_classes(of_train, declared) if of_train else None
    if not isinstance(found, Classes):
        return splits, {} if declared is None else _declared_card(declared)
    card: dict[str, object] = {"num_classes": found.count}
    card |= {FROM_TRAIN: True} if declared is None else {}
    if names := found.names or (declared if isinstance(declared, tuple) else ()):
        card["classes"] = list(names)
    return {name: with_names(split, found) if name in labelled else split for name, split in splits.items()}, card


def _declared_card(declared: int | tuple[str, ...]) -> dict[str, object]:
    if isinstance(declared, int):
        return {"num_classes": declared}
    return {"num_classes": len(declared), "classes": list(declared)}


def _conform_dataset(made: Dataset, declared: int | tuple[str, ...] | None) -> Dataset:
    """Return a data set of the user in simfl's types, with its classes in the card; its own card takes precedence."""
    splits = {name: conform(split, f"data, split {name}") for name, split in made.splits.items()}
    changed = any(splits[name] is not split for name, split in made.splits.items())
    names = made.card.get("classes")
    known = tuple(map(str, names)) if isinstance(names, (list, tuple)) and names else made.card.get("num_classes")
    splits, card = _with_classes(splits, declared or (known if isinstance(known, (int, tuple)) else None))
    sha256 = _sha256(splits, declared) if changed or declared else made.sha256
    return Dataset(made.name, splits, sha256, {**card, **made.card})


def example_rows() -> dict[str, list[dict[str, object]]]:
    """Return a small data set as rows, for `simfl.contract.check`."""
    return {"train": [{"features": [float(k), 1.0], "label": k % 2} for k in range(8)]}
