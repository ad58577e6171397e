"""Reads NumPy object arrays (.npy files that hold pickles) without running anything that is in them.

A pickle is a program that may call whatever it names. Here the names are a closed table, and none of them leads to code
of NumPy: arrays, scalars and types are rebuilt by the functions below from checked parts, as plain lists, numbers and
strings. Everything else in the file is refused by its name. ClientStore is not guarded: a hostile file can ask for it all.
"""

from __future__ import annotations

import io
import math
import pickle
import re
import sys
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from simfl.errors import DataError

BROKEN = (
    *(pickle.UnpicklingError, ValueError, TypeError, KeyError, IndexError, AttributeError),
    *(EOFError, OverflowError, MemoryError, RecursionError, ImportError),
)  # what a damaged or hostile pickle makes its reader raise


def load_records(path: Path) -> list[Any]:
    """The entries of a one-dimensional object array, as dicts, lists, tuples, sets, strings, bytes and numbers.

    Arrays inside come as lists. DataError for anything else, or for a file that is no such array.
    """
    try:
        with path.open("rb") as file:
            _check_header(file)
            records = PlainUnpickler(file).load()
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from error
    except BROKEN as error:
        raise DataError(f"{path}: not a plain NumPy object array ({error})") from error
    if not isinstance(records, list):
        raise DataError(f"{path}: a list of records is needed, it holds {type(records).__name__}")
    return records


def _check_header(file: BinaryIO) -> None:
    version = np.lib.format.read_magic(file)
    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}.get(version)
    if read is None:
        raise ValueError(f"format version {version}")
    shape, _, dtype = read(file)
    if dtype != np.dtype(object) or len(shape) != 1:
        raise ValueError(f"{dtype} of shape {shape}, a flat array of objects is needed")


class PlainUnpickler(pickle.Unpickler):
    """An unpickler that knows the names of the table and no other."""

    def find_class(self, module: str, name: str) -> Any:
        try:
            return NAMES[module.replace("numpy.core.", "numpy._core."), name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is refused") from None


def loads(data: bytes) -> Any:
    """One plain object from a pickle; raises one of `BROKEN` if it is not plain."""
    return PlainUnpickler(io.BytesIO(data)).load()


class _Type:
    """A NumPy type of plain kind: its code, and the byte order that follows as state."""

    def __init__(self, code: str):
        self.code, self.order = code, "|"

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        if state[1] not in ("<", ">", "|", "=") or any(part is not None for part in state[2:5]):
            raise pickle.UnpicklingError("it holds a structured NumPy type, which is refused")
        self.order = state[1]

    def values(self, raw: bytes | bytearray) -> np.ndarray:
        """The values in these bytes."""
        if self.code.startswith("O"):
            raise pickle.UnpicklingError("it holds bytes as objects, which is refused")
        order = self.order.replace("|", "=")
        if self.code.startswith("U") and np.frombuffer(bytes(raw), f"{order}u4").max(initial=0) > sys.maxunicode:
            raise pickle.UnpicklingError("it holds characters that do not exist")
        return np.frombuffer(bytes(raw), order + self.code)


class _Array(list[Any]):
    """An array that is being rebuilt: a list, nested as its shape says."""

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, kind, fortran, content = state
        if isinstance(content, list):
            values = np.empty(len(content), object)
            values[:] = content
        else:
            values = kind.values(content)
        self[:] = _nested(values, shape, "F" if fortran else "C")


def _nested(values: np.ndarray, shape: Any, order: Any) -> list[Any]:
    if not isinstance(shape, tuple) or math.prod(shape) != len(values) or any(size < 0 for size in shape):
        raise pickle.UnpicklingError(f"it holds an array of shape {shape} with {len(values)} values")
    nested = values.reshape(shape, order=order).tolist()
    return nested if shape else [nested]


def _dtype(code: str, align: bool, copy: bool) -> _Type:
    if not re.fullmatch(r"[biufSUO]\d{0,9}", code):
        raise pickle.UnpicklingError(f"it holds the NumPy type {code!r}, which is refused")
    return _Type(code)


def _reconstruct(kind: str, shape: tuple[int, ...], code: bytes) -> _Array:
    return _Array()


def _frombuffer(raw: bytes | bytearray, kind: _Type, shape: tuple[int, ...], order: str) -> list[Any]:
    return _nested(kind.values(raw), shape, order)


def _scalar(kind: _Type, raw: bytes) -> Any:
    (value,) = kind.values(raw).tolist()
    return value


def _encode(text: str, encoding: str) -> bytes:
    if encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"it asks for the encoding {encoding!r}, which is refused")
    return text.encode("latin1")


def _no_bytes() -> bytes:
    return b""


NAMES: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): "ndarray",  # named by arrays, and never called
    ("numpy", "dtype"): _dtype,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "scalar"): _scalar,
    ("numpy._core.numeric", "_frombuffer"): _frombuffer,
    ("_codecs", "encode"): _encode,  # how protocol 2 writes bytes
    ("__builtin__", "bytes"): _no_bytes,  # likewise, where they are none
    ("__builtin__", "set"): set,  # likewise
    ("__builtin__", "frozenset"): frozenset,
    ("builtins", "set"): set,
    ("builtins", "frozenset"): frozenset,
}
