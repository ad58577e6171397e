"""Safe reading of NumPy object arrays (.npy files that contain pickles): no code of the file is run.

A pickle is a program that may call any function it names. This unpickler resolves only the names of a fixed table, none
of which is NumPy code: arrays, scalars and types are rebuilt by the functions below from validated parts, as plain
lists, numbers and strings. Any other name is an error. Memory is not limited: a malicious file can exhaust it.
"""

from __future__ import annotations

import io
import math
import pickle
import re
import sys
import tokenize
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from simfl.errors import DataError

UNPICKLE_ERRORS = (
    *(pickle.UnpicklingError, ValueError, TypeError, KeyError, IndexError, AttributeError),
    *(EOFError, OverflowError, MemoryError, RecursionError, ImportError, SyntaxError, tokenize.TokenError),
)  # raised by a damaged or malicious pickle


def load_object_array(path: Path) -> list[object]:
    """Return the entries of a one-dimensional object array: dicts, lists, tuples, sets, strings, bytes and numbers.

    Nested arrays become lists. DataError for any other content, or if the file is not such an array.
    """
    try:
        with path.open("rb") as file:
            _check_header(file)
            entries = RestrictedUnpickler(file).load()
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from error
    except UNPICKLE_ERRORS as error:
        raise DataError(f"{path}: not a plain NumPy object array ({error})") from error
    if not isinstance(entries, list):
        raise DataError(f"{path}: contains {type(entries).__name__}, expected a list of records")
    return entries


def loads(data: bytes) -> object:
    """Unpickle one plain object; raise one of `UNPICKLE_ERRORS` if it is not plain."""
    content: object = RestrictedUnpickler(io.BytesIO(data)).load()
    return content


def _check_header(file: BinaryIO) -> None:
    version = np.lib.format.read_magic(file)
    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}.get(version)
    if read is None:
        raise ValueError(f"format version {version}")
    shape, _, dtype = read(file)
    if dtype != np.dtype(object) or len(shape) != 1:
        raise ValueError(f"{dtype} of shape {shape}, expected a one-dimensional array of objects")


class RestrictedUnpickler(pickle.Unpickler):
    """An unpickler that resolves only the names of `ALLOWED`."""

    def find_class(self, module: str, name: str) -> Any:
        """Return the replacement of an allowed name."""
        try:
            return ALLOWED[module.replace("numpy.core.", "numpy._core."), name]
        except KeyError:
            raise pickle.UnpicklingError(f"{module}.{name} is not allowed") from None


class _DType:
    """A plain NumPy type: its code, and its byte order, which the pickle sets as state."""

    def __init__(self, code: str):
        self.code, self.order = code, "|"

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        if state[1] not in ("<", ">", "|", "=") or any(part is not None for part in state[2:5]):
            raise pickle.UnpicklingError("structured NumPy types are not allowed")
        self.order = state[1]

    def values(self, raw: bytes | bytearray) -> np.ndarray:
        """Decode the values in these bytes."""
        if self.code.startswith("O"):
            raise pickle.UnpicklingError("objects stored as bytes are not allowed")
        order = self.order.replace("|", "=")
        if self.code.startswith("U") and np.frombuffer(bytes(raw), f"{order}u4").max(initial=0) > sys.maxunicode:
            raise pickle.UnpicklingError("a string contains invalid characters")
        return np.frombuffer(bytes(raw), order + self.code)


class _Array(list[Any]):
    """An array being rebuilt, as a list nested by its shape."""

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, fortran, content = state
        if isinstance(content, list):
            values = np.empty(len(content), object)
            values[:] = content
        else:
            values = dtype.values(content)
        self[:] = _nested(values, shape, "F" if fortran else "C")


def _nested(values: np.ndarray, shape: Any, order: Any) -> list[Any]:
    if not isinstance(shape, tuple) or math.prod(shape) != len(values) or any(size < 0 for size in shape):
        raise pickle.UnpicklingError(f"an array of shape {shape} has {len(values)} values")
    nested = values.reshape(shape, order=order).tolist()
    return nested if shape else [nested]


def _dtype(code: str, align: bool, copy: bool) -> _DType:
    if not re.fullmatch(r"[biufSUO]\d{0,9}", code):
        raise pickle.UnpicklingError(f"the NumPy type {code!r} is not allowed")
    return _DType(code)


def _reconstruct(kind: str, shape: tuple[int, ...], code: bytes) -> _Array:
    return _Array()


def _frombuffer(raw: bytes | bytearray, dtype: _DType, shape: tuple[int, ...], order: str) -> list[Any]:
    return _nested(dtype.values(raw), shape, order)


def _scalar(dtype: _DType, raw: bytes) -> Any:
    (value,) = dtype.values(raw).tolist()
    return value


def _encode(text: str, encoding: str) -> bytes:
    if encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"the encoding {encoding!r} is not allowed")
    return text.encode("latin1")


def _no_bytes() -> bytes:
    return b""


ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): "ndarray",  # named by arrays, never called
    ("numpy", "dtype"): _dtype,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "scalar"): _scalar,
    ("numpy._core.numeric", "_frombuffer"): _frombuffer,
    ("_codecs", "encode"): _encode,  # protocol 2 writes bytes with it
    ("__builtin__", "bytes"): _no_bytes,  # protocol 2, for empty bytes
    ("__builtin__", "set"): set,
    ("__builtin__", "frozenset"): frozenset,
    ("builtins", "set"): set,
    ("builtins", "frozenset"): frozenset,
}
