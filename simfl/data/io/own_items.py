"""Items of the user as Arrow tables: arrays, images, labels and any other values.

Items are a pair of arrays (X, y), a mapping of columns, or a sequence of (x, y) or of mappings. `x` is `features` and
`y` is `label`; every other name is a column. Items with a question or with words and boxes are divided into questions
and documents (`simfl.data.io.own_documents`).
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from simfl.data.io.images import encode_upright
from simfl.errors import DataError
from simfl.generators.watched import Generators

NAMES = {"x": "features", "y": "label"}  # columns that simfl's objectives read
NAMED = ("client", "group", "provider", "domain", "user", "source")  # names of any type, also of several types
Columns = dict[str, Sequence[Any]]


@dataclass(frozen=True)
class FeatureType:
    """The shape of one example's features, and whether they were uint8, which is scaled to [0, 1]."""

    shape: tuple[int, ...]
    is_uint8: bool


def read_columns(items: Any, where: str) -> Columns:
    """Return the columns of the items of a split, by simfl's names.

    Args:
        items: A pair of arrays (X, y), a mapping of columns, or a sequence of (x, y) or of mappings.
        where: The split, for error messages.

    Raises:
        DataError: The items cannot be read, there are none, or their columns differ in length.
    """
    columns = {NAMES.get(name, name): values for name, values in _columns(items, where).items()}
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        raise DataError(f"{where}: columns differ in length: {', '.join(f'{n} has {c}' for n, c in lengths.items())}")
    if not any(lengths.values()):
        raise DataError(f"{where}: there are no examples")
    return columns


def _columns(items: Any, where: str) -> dict[str, Sequence[Any]]:
    if isinstance(items, Mapping):
        return {str(name): _sequence(name, values, where) for name, values in items.items()}
    if isinstance(items, tuple) and len(items) == 2 and hasattr(items[0], "shape") and _is_column(items[1]):
        return {"x": items[0], "y": items[1]}
    if not (hasattr(items, "__getitem__") and hasattr(items, "__len__")):
        raise DataError(f"{where}: {type(items).__name__} has no length, or its items cannot be read by index")
    with _draws_refused(items, where):
        rows = [_row(_item(items, i, f"{where}, item {i}"), f"{where}, item {i}") for i in range(len(items))]
    names = rows[0].keys() if rows else ()
    for i, row in enumerate(rows):
        if row.keys() != names:
            raise DataError(f"{where}, item {i}: its fields are {', '.join(row)}, those of item 0 {', '.join(names)}")
    return {name: [row[name] for row in rows] for name in names}


def _is_column(values: object) -> bool:
    return hasattr(values, "shape") or (isinstance(values, Sequence) and not isinstance(values, (str, bytes)))


@contextmanager
def _draws_refused(items: object, where: str) -> Iterator[None]:
    """Raise DataError if reading all items inside the block draws from a random generator."""
    generators = Generators({"items": items})
    with generators.observed():
        yield
    names = generators.drawn() + ["the randomness of the operating system"] * generators.has_system_draws
    if names:
        raise DataError(
            f"{where}: its items draw from {' and '.join(names)} when they are read, which is once; allowed: draws in"
            " the constructor, and phases.0.transform for random augmentation, which draws in every epoch"
        )


def _sequence(name: object, values: Any, where: str) -> Sequence[Any]:
    if isinstance(values, str | bytes) or not (hasattr(values, "__getitem__") and hasattr(values, "__len__")):
        raise DataError(f"{where}: column {name!r} is {type(values).__name__}, expected a sequence")
    found: Sequence[Any] = values
    return found


def _item(items: Any, number: int, where: str) -> Any:
    """Return an item; an error of the user's code becomes one line that names its place."""
    try:
        return items[number]
    except Exception as error:
        raise DataError(f"{where}: {described_error(error)}") from error


def described_error(error: Exception) -> str:
    """Describe an error of the user's code in one line, with its place."""
    line = traceback.extract_tb(error.__traceback__)[-1]
    text = str(error).splitlines()[0] if str(error) else ""
    return f"{type(error).__name__}: {text} ({Path(line.filename).name}:{line.lineno})"


def _row(item: object, where: str) -> dict[str, Any]:
    if isinstance(item, Mapping):
        return {str(name): value for name, value in item.items()}
    if isinstance(item, (tuple, list)) and len(item) == 2:
        return {"x": item[0], "y": item[1]}
    raise DataError(f"{where}: {type(item).__name__} is neither (x, y) nor a mapping")


def encode_images(columns: Columns, where: str) -> Columns:
    """Return the columns with images encoded: images given as features, and the column `image`."""
    encoded = dict(columns)
    if "features" in columns and _is_image(_first(columns["features"])):
        encoded["image"] = encoded.pop("features")
    if "image" in encoded:
        encoded["image"] = [_encode(image, f"{where}, item {i}") for i, image in enumerate(encoded["image"])]
    return encoded


def _first(values: Sequence[Any]) -> Any:
    return next((value for value in values if value is not None), None)


def _is_image(value: object) -> bool:
    return isinstance(value, (bytes, Path)) or (hasattr(value, "save") and hasattr(value, "mode"))


def _encode(image: Any, where: str) -> bytes | None:
    """Encode an image; a path is read, so that workers need not see the file."""
    if image is None or isinstance(image, bytes):
        return image
    if isinstance(image, (str, Path)):
        try:
            return Path(image).read_bytes()
        except OSError as error:
            raise DataError(f"{where}: the image {str(image)!r}: {error.strerror or error}") from error
    if not _is_image(image):
        raise DataError(f"{where}: {type(image).__name__} is no image; allowed: PIL images, bytes and paths of files")
    return encode_upright(image, where)


def to_table(columns: Columns, where: str) -> tuple[pa.Table, FeatureType | None]:
    """Return the columns as a table, and the type of the features if there are any."""
    arrays = {name: _to_arrow(name, values, where) for name, values in columns.items()}
    features = arrays["features"][1] if "features" in arrays else None
    return pa.table({name: array for name, (array, _) in arrays.items()}), features


def _to_arrow(name: str, values: Sequence[Any], where: str) -> tuple[pa.Array, FeatureType | None]:
    """Convert a column: arrays become flat float32 lists, uint8 is scaled to [0, 1], other values keep their type."""
    if name == "label":
        values = _single_labels(values)
    if name == "features" or (len(values) and getattr(values[0], "shape", None)):
        return _flatten(name, values, where)
    plain = [value.item() if hasattr(value, "item") else value for value in values]
    if name in NAMED and len({type(value) for value in plain if value is not None}) > 1:
        plain = [None if value is None else str(value) for value in plain]
    try:
        array = pa.array(plain)
    except (pa.ArrowException, OverflowError, ValueError) as error:
        raise DataError(f"{where}: column {name!r}: {str(error).splitlines()[0]}") from None
    return (_label_array(array) if name == "label" else array), None


def _single_labels(values: Sequence[Any]) -> Sequence[Any]:
    """Return labels of shape [N, 1] as [N]."""
    if len(values) and getattr(values[0], "shape", None) == (1,):
        return [value[0] for value in values]
    return values


def _label_array(array: pa.Array) -> pa.Array:
    """Return labels as int32 where they are integers that fit or booleans; others keep their type."""
    kind = array.type
    if pa.types.is_boolean(kind):
        return array.cast(pa.int32())
    if not pa.types.is_integer(kind):
        return array
    try:
        return array.cast(pa.int32())
    except pa.ArrowInvalid:
        return array


def _flatten(name: str, values: Sequence[Any], where: str) -> tuple[pa.Array, FeatureType]:
    arrays = [np.asarray(_to_numpy(value)) for value in values]
    shape, kind = arrays[0].shape, arrays[0].dtype
    for i, array in enumerate(arrays):
        if array.shape != shape:
            raise DataError(f"{where}, item {i}: {name} has shape {array.shape}, that of item 0 has {shape}")
        if array.dtype.kind not in "fiub":
            raise DataError(f"{where}, item {i}: column {name!r} has type {array.dtype}, expected numbers")
        if (array.dtype == np.uint8) != (kind == np.uint8):
            raise DataError(
                f"{where}, item {i}: {name} has type {array.dtype}, that of item 0 has {kind}; uint8 alone is scaled"
            )
    if 0 in shape:
        raise DataError(f"{where}: column {name!r} has shape {shape}, expected at least one number")
    factor = 1 / 255 if kind == np.uint8 else 1
    with np.errstate(over="ignore"):
        flat = np.stack(arrays).reshape(len(arrays), -1).astype(np.float32) * np.float32(factor)
    if name == "features":
        _require_finite(flat, arrays, where)
    lists = pa.FixedSizeListArray.from_arrays(pa.array(flat.reshape(-1)), flat.shape[1])
    return lists, FeatureType(shape or (1,), kind == np.uint8)


def _require_finite(flat: np.ndarray, arrays: Sequence[np.ndarray], where: str) -> None:
    """Raise DataError for a finite value that float32 cannot hold; others are found when the data set is checked."""
    wrong = np.argwhere(np.isinf(flat))
    for row, column in wrong:
        value = arrays[row].reshape(-1)[column]
        if np.isfinite(value):
            raise DataError(f"{where}, row {row}, column 'features': {value:g} is too large for float32")


def _to_numpy(value: Any) -> Any:
    """Convert a torch tensor to a NumPy array without importing torch; return other values unchanged."""
    return value.detach().cpu().numpy() if hasattr(value, "detach") else value
