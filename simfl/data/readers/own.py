"""A data set of one's own: anything with a length whose items are (x, y) or mappings, such as torch's data sets.

It is read once, by the process that starts the run, and kept as Arrow files in the cache, under a hash of its content;
workers map these into memory. On several machines the cache has to lie on a file system that all of them share.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from simfl import imports as given
from simfl.data.base import Data, Dataset, Split
from simfl.data.io.arrow_store import content_sha256, read, write
from simfl.errors import DataError

NAMES = {"x": "features", "y": "label"}  # of the columns that simfl's objectives read
Column = tuple[pa.Array, tuple[int, ...] | None]  # values, and the shape of one where it is an array


@dataclass(frozen=True)
class Own(Data):
    """A data set of your own: what `package.module:function` returns; from Python also the data themselves."""

    of: object  # package.module:function, called with the settings, that returns {split: items} or the items of train
    settings: Mapping[str, object] = field(default_factory=dict)  # keyword arguments of the function
    sha256: str | None = None  # written by simfl, of data given from Python: their content

    def load(self, cache: Path) -> Dataset:
        """Read the items and keep them in the cache; data given from Python are found there again by their hash."""
        folder = None if self.sha256 is None else _folder(cache, self.sha256)
        if folder is not None and (folder / "card.json").exists():
            return read(folder)
        if isinstance(self.of, str) and self.of.startswith(given.OBJECT):
            raise DataError(f"data: {folder} is gone, where {self.of} was kept; {given.AGAIN}")
        dataset = self._dataset()
        folder = _folder(cache, dataset.sha256)
        if not (folder / "card.json").exists():
            write(folder, dataset)
        vars(self)["_sha256"] = dataset.sha256
        return read(folder)

    def _dataset(self) -> Dataset:
        made = given.resolve(self.of, "data.of")
        if isinstance(made, type) or (callable(made) and not hasattr(made, "__getitem__")):
            made = given.called(made, self.settings, "data")
        if isinstance(made, Dataset):
            return made
        splits = made if isinstance(made, Mapping) and "train" in made else {"train": made}
        parts = {str(name): split(items, f"data, split {name}") for name, items in splits.items()}
        return _joined({name: part for name, (part, _) in parts.items()}, [shape for _, shape in parts.values()])

    def plain(self) -> dict[str, object]:
        """The settings as an experiment file holds them."""
        of = given.written(self.of)
        return {"of": of, "settings": self.settings, "sha256": self._sha256 if of.startswith(given.OBJECT) else None}

    @cached_property
    def _sha256(self) -> str:
        return self.sha256 or self._dataset().sha256

    def __getstate__(self) -> dict[str, object]:
        """What another process gets: the hash under which the data lie in the cache, never the data."""
        known = vars(self).get("_sha256") or self.sha256
        return {"of": given.written(self.of), "settings": self.settings, "sha256": known} if known else dict(vars(self))


def wrap(value: object) -> Data | None:
    """Data in place of a name, as a component; None for anything else."""
    if isinstance(value, Mapping):
        return Own(value) if "train" in value else None
    sized = hasattr(value, "__getitem__") and hasattr(value, "__len__")
    return Own(value) if sized or callable(value) else None


def _folder(cache: Path, sha256: str) -> Path:
    return cache / f"own-{sha256[:16]}"


def _joined(splits: dict[str, Split], shapes: Sequence[tuple[int, ...] | None]) -> Dataset:
    if len(set(shapes)) > 1:
        raise DataError(f"data: the splits have examples of other shapes: {', '.join(str(shape) for shape in shapes)}")
    labels = [s.examples["label"] for s in splits.values() if "label" in s.examples.column_names]
    whole = [column for column in labels if pa.types.is_integer(column.type) and len(column)]
    card: dict[str, object] = {"examples": {name: len(part) for name, part in splits.items()}}
    if shapes[0]:
        card["shape"] = list(shapes[0])
    if whole and len(whole) == len(labels):
        card["num_classes"] = 1 + max(int(column.to_numpy().max()) for column in whole)
    return Dataset("own", splits, content_sha256(splits, exclude=()), card)


def split(items: Any, where: str) -> tuple[Split, tuple[int, ...] | None]:
    """The items of a split as a table, and the shape of one example's features; DataError says what cannot be read."""
    if isinstance(items, Split):
        return items, None
    columns = {NAMES.get(name, name): values for name, values in _columns(items, where).items()}
    if not columns:
        raise DataError(f"{where}: there are no examples")
    if "features" in columns and _is_picture(columns["features"][0]):
        columns["image"] = [_encoded(picture) for picture in columns.pop("features")]
    arrays = {name: _array(name, values, where) for name, values in columns.items()}
    shape = arrays["features"][1] if "features" in arrays else None
    return Split(pa.table({name: array for name, (array, _) in arrays.items()})), shape


def _columns(items: Any, where: str) -> dict[str, Sequence[Any]]:
    """A pair of arrays (X, y), a mapping of columns, or a sequence of items, as columns."""
    if isinstance(items, Mapping):
        return dict(items)
    if isinstance(items, tuple) and len(items) == 2 and all(hasattr(part, "shape") for part in items):
        return {"x": items[0], "y": items[1]}
    if not (hasattr(items, "__getitem__") and hasattr(items, "__len__")):
        raise DataError(f"{where}: {type(items).__name__} has no length or no items by number")
    rows = [_row(items[i], f"{where}, item {i}") for i in range(len(items))]
    names = rows[0].keys() if rows else ()
    for i, row in enumerate(rows):
        if row.keys() != names:
            raise DataError(f"{where}, item {i}: it has {', '.join(row)}, the first has {', '.join(names)}")
    return {name: [row[name] for row in rows] for name in names}


def _row(item: Any, where: str) -> dict[str, Any]:
    if isinstance(item, Mapping):
        return {str(name): value for name, value in item.items()}
    if isinstance(item, (tuple, list)) and len(item) == 2:
        return {"x": item[0], "y": item[1]}
    raise DataError(f"{where}: {type(item).__name__} is neither (x, y) nor a mapping")


def _array(name: str, values: Sequence[Any], where: str) -> Column:
    """A column: numbers and text as they are, arrays flat as float32, bytes of pictures scaled to [0, 1]."""
    if name == "features" or (len(values) and getattr(values[0], "shape", None)):
        return _flat(name, values, where)
    try:
        array = pa.array([value.item() if hasattr(value, "item") else value for value in values])
    except (pa.ArrowException, OverflowError) as error:
        raise DataError(f"{where}: column {name!r}: {str(error).splitlines()[0]}") from None
    if name == "label" and pa.types.is_integer(array.type):
        array = array.cast(pa.int32())
    return array, None


def _flat(name: str, values: Sequence[Any], where: str) -> Column:
    arrays = [np.asarray(_plain(value)) for value in values]
    shape = arrays[0].shape
    for i, array in enumerate(arrays):
        if array.shape != shape:
            raise DataError(f"{where}, item {i}: {name} has shape {array.shape}, the first has {shape}")
    if arrays[0].dtype.kind not in "fiub":
        raise DataError(f"{where}: column {name!r} holds {arrays[0].dtype}, numbers are needed")
    factor = 1 / 255 if arrays[0].dtype == np.uint8 else 1
    flat = np.stack(arrays).reshape(len(arrays), -1).astype(np.float32) * np.float32(factor)
    return pa.FixedSizeListArray.from_arrays(pa.array(flat.reshape(-1)), flat.shape[1]), shape or (1,)


def _plain(value: Any) -> Any:
    """torch's tensors as numpy's arrays, without knowing torch."""
    return value.detach().cpu().numpy() if hasattr(value, "detach") else value


def _is_picture(value: Any) -> bool:
    return isinstance(value, bytes) or (hasattr(value, "save") and hasattr(value, "mode"))


def _encoded(picture: Any) -> bytes:
    if isinstance(picture, bytes):
        return picture
    out = io.BytesIO()
    picture.save(out, "PNG")
    return out.getvalue()
