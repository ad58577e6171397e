"""Data sets of the user: anything with a length whose items are (x, y) or mappings, such as torch's data sets.

They are read once, by the process that starts the run, and stored as Arrow files in the cache under a hash of their
content; workers memory-map these files. With several machines the cache must be on a shared file system.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from simfl import imports
from simfl.data.base import Data, Dataset, Split
from simfl.data.io.arrow_store import content_sha256, read_dataset, write_dataset
from simfl.errors import DataError

NAMES = {"x": "features", "y": "label"}  # columns that simfl's objectives read
Shape = tuple[int, ...] | None  # of one example's features; None: not an array


@dataclass(frozen=True)
class Own(Data):
    """Your own data set: the result of `package.module:function`, or from Python the data themselves."""

    of: object  # package.module:function, which returns {split: items} or the items of train
    settings: Mapping[str, object] = field(default_factory=dict)  # keyword arguments of the function
    sha256: str | None = None  # written by simfl for data given from Python: hash of their content
    example: ClassVar[Mapping[str, object]] = {"of": "simfl.data.readers.own:example_rows"}

    def load(self, cache: Path) -> Dataset:
        """Read the items and store them in the cache; data given from Python are found there again by their hash."""
        folder = None if self.sha256 is None else _folder(cache, self.sha256)
        if folder is not None and (folder / "card.json").exists():
            return read_dataset(folder)
        if isinstance(self.of, str) and self.of.startswith(imports.OBJECT):
            raise DataError(f"data: {folder} with the data of {self.of} is missing; {imports.AGAIN}")
        dataset = self._dataset()
        folder = _folder(cache, dataset.sha256)
        if not (folder / "card.json").exists():
            write_dataset(folder, dataset)
        vars(self)["_sha256"] = dataset.sha256
        return read_dataset(folder)

    def _dataset(self) -> Dataset:
        made = imports.resolve(self.of, "data.of")
        if isinstance(made, type) or (callable(made) and not hasattr(made, "__getitem__")):
            made = imports.call(made, self.settings, "data")
        if isinstance(made, Dataset):
            return made
        items_of = made if isinstance(made, Mapping) and "train" in made else {"train": made}
        parts = {str(name): build_split(items, f"data, split {name}") for name, items in items_of.items()}
        return _build_dataset({name: split for name, (split, _) in parts.items()}, [s for _, s in parts.values()])

    def plain(self) -> dict[str, object]:
        """Return the settings as an experiment file contains them."""
        of = imports.reference(self.of)
        return {"of": of, "settings": self.settings, "sha256": self._sha256 if of.startswith(imports.OBJECT) else None}

    @cached_property
    def _sha256(self) -> str:
        return self.sha256 or self._dataset().sha256

    def __getstate__(self) -> dict[str, object]:
        """Return the state for another process: the hash of the cached data, never the data."""
        known = vars(self).get("_sha256") or self.sha256
        if not known:
            return dict(vars(self))
        return {"of": imports.reference(self.of), "settings": self.settings, "sha256": known}


def wrap(value: object) -> Data | None:
    """Return data that are given in place of a name as a component; None for any other value."""
    if isinstance(value, Mapping):
        return Own(value) if "train" in value else None
    is_sequence = hasattr(value, "__getitem__") and hasattr(value, "__len__")
    return Own(value) if is_sequence or callable(value) else None


def _folder(cache: Path, sha256: str) -> Path:
    return cache / f"own-{sha256[:16]}"


def _build_dataset(splits: dict[str, Split], shapes: Sequence[Shape]) -> Dataset:
    if len(set(shapes)) > 1:
        raise DataError(f"data: examples of the splits have different shapes: {', '.join(str(s) for s in shapes)}")
    labels = [s.examples["label"] for s in splits.values() if "label" in s.examples.column_names]
    integer_labels = [column for column in labels if pa.types.is_integer(column.type) and len(column)]
    card: dict[str, object] = {"examples": {name: len(part) for name, part in splits.items()}}
    if shapes[0]:
        card["shape"] = list(shapes[0])
    if integer_labels and len(integer_labels) == len(labels):
        card["num_classes"] = 1 + max(int(column.to_numpy().max()) for column in integer_labels)
    return Dataset("own", splits, content_sha256(splits, exclude=()), card)


def build_split(items: object, where: str) -> tuple[Split, Shape]:
    """Return the items of a split as a table, and the shape of one example's features.

    Args:
        items: A Split, a pair of arrays (X, y), a mapping of columns, or a sequence of (x, y) or mappings.
        where: The split, for error messages.

    Raises:
        DataError: the items cannot be read.
    """
    if isinstance(items, Split):
        return items, None
    columns = {NAMES.get(name, name): values for name, values in _columns(items, where).items()}
    if not columns:
        raise DataError(f"{where}: there are no examples")
    if "features" in columns and _is_image(columns["features"][0]):
        columns["image"] = [_encode_image(image) for image in columns.pop("features")]
    arrays = {name: _to_arrow(name, values, where) for name, values in columns.items()}
    shape = arrays["features"][1] if "features" in arrays else None
    return Split(pa.table({name: array for name, (array, _) in arrays.items()})), shape


def _columns(items: Any, where: str) -> dict[str, Sequence[Any]]:
    if isinstance(items, Mapping):
        return dict(items)
    if isinstance(items, tuple) and len(items) == 2 and all(hasattr(part, "shape") for part in items):
        return {"x": items[0], "y": items[1]}
    if not (hasattr(items, "__getitem__") and hasattr(items, "__len__")):
        raise DataError(f"{where}: {type(items).__name__} has no length, or its items cannot be read by index")
    rows = [_row(items[i], f"{where}, item {i}") for i in range(len(items))]
    names = rows[0].keys() if rows else ()
    for i, row in enumerate(rows):
        if row.keys() != names:
            raise DataError(f"{where}, item {i}: its fields are {', '.join(row)}, those of item 0 {', '.join(names)}")
    return {name: [row[name] for row in rows] for name in names}


def _row(item: object, where: str) -> dict[str, Any]:
    if isinstance(item, Mapping):
        return {str(name): value for name, value in item.items()}
    if isinstance(item, (tuple, list)) and len(item) == 2:
        return {"x": item[0], "y": item[1]}
    raise DataError(f"{where}: {type(item).__name__} is neither (x, y) nor a mapping")


def _to_arrow(name: str, values: Sequence[Any], where: str) -> tuple[pa.Array, Shape]:
    """Convert a column: arrays become flat float32 lists, uint8 is scaled to [0, 1], other values keep their type."""
    if name == "features" or (len(values) and getattr(values[0], "shape", None)):
        return _flatten(name, values, where)
    try:
        array = pa.array([value.item() if hasattr(value, "item") else value for value in values])
    except (pa.ArrowException, OverflowError) as error:
        raise DataError(f"{where}: column {name!r}: {str(error).splitlines()[0]}") from None
    if name == "label" and pa.types.is_integer(array.type):
        array = array.cast(pa.int32())
    return array, None


def _flatten(name: str, values: Sequence[Any], where: str) -> tuple[pa.Array, Shape]:
    arrays = [np.asarray(_to_numpy(value)) for value in values]
    shape = arrays[0].shape
    for i, array in enumerate(arrays):
        if array.shape != shape:
            raise DataError(f"{where}, item {i}: {name} has shape {array.shape}, that of item 0 has {shape}")
    if arrays[0].dtype.kind not in "fiub":
        raise DataError(f"{where}: column {name!r} has type {arrays[0].dtype}, expected numbers")
    factor = 1 / 255 if arrays[0].dtype == np.uint8 else 1
    flat = np.stack(arrays).reshape(len(arrays), -1).astype(np.float32) * np.float32(factor)
    return pa.FixedSizeListArray.from_arrays(pa.array(flat.reshape(-1)), flat.shape[1]), shape or (1,)


def _to_numpy(value: Any) -> Any:
    """Convert a torch tensor to a NumPy array without importing torch; return other values unchanged."""
    return value.detach().cpu().numpy() if hasattr(value, "detach") else value


def _is_image(value: object) -> bool:
    return isinstance(value, bytes) or (hasattr(value, "save") and hasattr(value, "mode"))


def _encode_image(image: Any) -> bytes:
    if isinstance(image, bytes):
        return image
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


def example_rows() -> dict[str, list[dict[str, object]]]:
    """Return a small data set as rows, for `simfl.contract.check`."""
    return {"train": [{"features": [float(k), 1.0], "label": k % 2} for k in range(8)]}
