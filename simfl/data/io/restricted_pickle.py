"""Safe reading of NumPy object arrays (.npy files that contain pickles): no code of the file is run.

A pickle is a program that may call any function it names. This unpickler resolves only the names of a fixed table, none
of which is NumPy code: arrays, scalars and types are rebuilt by the functions below from validated parts, as plain
lists, numbers and strings. Any other name is an error.

Memory is limited by the size of the file. `check_sizes` walks through the program before it is run and refuses lengths
beyond the end of the file and numbers of variables beyond its size, for which pickle would reserve memory. A budget
limits the values that arrays and sets are rebuilt to, as a few bytes can rebuild the same array again and again.
"""

from __future__ import annotations

import io
import itertools
import math
import mmap
import operator
import pickle
import pickletools
import re
import sys
import tokenize
from functools import cache, partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from simfl.errors import DataError

UNPICKLE_ERRORS = (
    *(pickle.UnpicklingError, ValueError, TypeError, KeyError, IndexError, AttributeError),
    *(EOFError, OverflowError, RecursionError, ImportError, SyntaxError, tokenize.TokenError),
)  # raised by a damaged or malicious pickle
SPARE, FACTOR = 2**20, 8  # values that arrays may be rebuilt to: SPARE, and FACTOR for each byte of the file
PREFIXES = {-2: 1, -3: 4, -4: 4, -5: 8}  # bytes of the length before an argument, by the codes of `pickletools`


def load_object_array(path: Path) -> list[object]:
    """Return the entries of a one-dimensional object array: dicts, lists, tuples, sets, strings, bytes and numbers.

    Nested arrays become lists. DataError for any other content, or if the file is not such an array.
    """
    try:
        with path.open("rb") as file:
            _check_header(file)
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                check_sizes(content, file.tell())
                entries = RestrictedUnpickler(file, len(content)).load()
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from error
    except UNPICKLE_ERRORS as error:
        raise DataError(f"{path}: not a plain NumPy object array ({error})") from error
    if not isinstance(entries, list):
        raise DataError(f"{path}: contains {type(entries).__name__}, expected a list of records")
    return entries


def loads(data: bytes) -> object:
    """Unpickle one plain object; raise one of `UNPICKLE_ERRORS` if it is not plain."""
    check_sizes(data)
    content: object = RestrictedUnpickler(io.BytesIO(data), len(data)).load()
    return content


def check_sizes(content: bytes | mmap.mmap, start: int = 0) -> None:
    """Refuse a pickle whose lengths or numbers of variables are beyond its size; its other faults are found later.

    Args:
        content: The bytes that hold the pickle.
        start: Where it begins.

    Raises:
        UnpicklingError: A size is refused, or the pickle ends too early.
    """
    at, size, plain = start, len(content), _plain_codes()
    while True:
        found = plain.match(content, at)
        at = at if found is None else found.end()
        code = content[at : at + 1]
        if code == b".":
            return
        if code in RESERVING:
            text, at = _argument(content, at, RESERVING[code])
            number = int(text) if RESERVING[code] is None else int.from_bytes(text, "little")
        elif code in LENGTHS:
            text, at = _argument(content, at, LENGTHS[code])
            number = int.from_bytes(text, "little")
            at += number
        else:
            raise pickle.UnpicklingError("unknown code" if code else "the pickle ends too early")
        if number > size or at > size:
            raise pickle.UnpicklingError(f"a size of {number:,} in a pickle of {size:,} bytes")


def _argument(content: bytes | mmap.mmap, at: int, length: int | None) -> tuple[bytes, int]:
    """Return the argument of the code at `at`, of a length or up to the end of a line, and where it ends."""
    end = at + 1 + length if length is not None else content.find(b"\n", at) + 1
    if end > len(content) or end == 0:
        raise pickle.UnpicklingError("the pickle ends too early")
    return content[at + 1 : end], end


@cache
def _plain_codes() -> re.Pattern[bytes]:
    """Return a pattern of all codes whose argument has a fixed or a short length, as often as they follow each other.

    A pattern runs hundreds of times faster than a loop over the codes of a file with millions of words. It takes 0.1 s
    to compile, so it is compiled when it is first used.
    """
    fixed: dict[int, bytes] = {}
    parts = [b"r[\\0-\\xff]{3}\\0", b"\\x95[\\0-\\xff]{3}\\0{5}"]  # less than 2**24 variables or bytes
    for one in pickletools.opcodes:
        code, kind = one.code.encode("latin1"), 0 if one.arg is None else one.arg.n
        if code in RESERVING or code == b".":
            continue
        if kind >= 0:
            fixed[kind] = fixed.get(kind, b"") + re.escape(code)
        elif kind == pickletools.UP_TO_NEWLINE:
            lines = 2 if one.arg is not None and "pair" in one.arg.name else 1
            parts.append(re.escape(code) + rb"(?:[^\n]*\n){%d}" % lines)
        elif kind in PREFIXES:
            zeros = b"\\0" * (PREFIXES[kind] - 1)  # a length below 256 has these bytes
            strings = (re.escape(bytes([n])) + zeros + b"[\\0-\\xff]{%d}" % n for n in range(256))
            parts.append(re.escape(code) + b"(?:" + b"|".join(strings) + b")")
    parts += [b"[" + codes + b"]" + b"[\\0-\\xff]{%d}" % length for length, codes in fixed.items()]
    return re.compile(b"(?:" + b"|".join(parts) + b")*+")


RESERVING: dict[bytes, int | None] = {  # codes for which pickle reserves memory; bytes of the number, None: a line
    b"p": None,  # number of a variable
    b"r": 4,
    b"\x95": 8,  # length of a frame, whose content follows as further codes
}
LENGTHS = {
    one.code.encode("latin1"): PREFIXES[one.arg.n] for one in pickletools.opcodes if one.arg and one.arg.n in PREFIXES
}


def _check_header(file: BinaryIO) -> None:
    version = np.lib.format.read_magic(file)
    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}.get(version)
    if read is None:
        raise ValueError(f"format version {version}")
    shape, _, dtype = read(file)
    if dtype != np.dtype(object) or len(shape) != 1:
        raise ValueError(f"{dtype} of shape {shape}, expected a one-dimensional array of objects")


class _Budget:
    """The number of values that arrays and sets may still be rebuilt to."""

    def __init__(self, size: int):
        self.left = SPARE + FACTOR * size

    def spend(self, count: int) -> None:
        """Count values; UnpicklingError if they are more than the file can hold."""
        self.left -= count
        if self.left < 0:
            raise pickle.UnpicklingError("arrays have more values than the file has bytes")


class RestrictedUnpickler(pickle.Unpickler):
    """An unpickler that resolves only the names of `ALLOWED`, for a pickle that `check_sizes` has accepted."""

    def __init__(self, file: BinaryIO, size: int):
        """Read from a file; `size` is its number of bytes."""
        super().__init__(file)
        self._budget = _Budget(size)

    def find_class(self, module: str, name: str) -> Any:
        """Return the replacement of an allowed name."""
        try:
            return partial(ALLOWED[module.replace("numpy.core.", "numpy._core."), name], self._budget)
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

    def __init__(self, budget: _Budget):
        super().__init__()
        self._budget = budget

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, fortran, content = state
        if isinstance(content, list):
            values = np.empty(len(content), object)
            values[:] = content
        else:
            values = dtype.values(content)
        self[:] = _nested(self._budget, values, shape, "F" if fortran else "C")


def _nested(budget: _Budget, values: np.ndarray, shape: Any, order: Any) -> list[Any]:
    if not isinstance(shape, tuple) or math.prod(shape) != len(values) or any(size < 0 for size in shape):
        raise pickle.UnpicklingError(f"an array of shape {shape} has {len(values)} values")
    budget.spend(sum(itertools.accumulate(shape, operator.mul)))  # lists, and the values in the innermost ones
    nested = values.reshape(shape, order=order).tolist()
    return nested if shape else [nested]


def _dtype(budget: _Budget, code: str, align: bool, copy: bool) -> _DType:
    if not re.fullmatch(r"[biufSUO]\d{0,9}", code):
        raise pickle.UnpicklingError(f"the NumPy type {code!r} is not allowed")
    return _DType(code)


def _reconstruct(budget: _Budget, kind: object, shape: tuple[int, ...], code: bytes) -> _Array:
    return _Array(budget)


def _frombuffer(
    budget: _Budget, raw: bytes | bytearray, dtype: _DType, shape: tuple[int, ...], order: str
) -> list[Any]:
    return _nested(budget, dtype.values(raw), shape, order)


def _scalar(budget: _Budget, dtype: _DType, raw: bytes) -> Any:
    budget.spend(len(raw))
    (value,) = dtype.values(raw).tolist()
    return value


def _encode(budget: _Budget, text: str, encoding: str) -> bytes:
    if encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"the encoding {encoding!r} is not allowed")
    budget.spend(len(text))
    return text.encode("latin1")


def _no_bytes(budget: _Budget) -> bytes:
    return b""


def _ndarray(budget: _Budget) -> None:
    """Stand for the type of arrays, which pickles name and never call."""


def _set(budget: _Budget, values: list[Any] | tuple[Any, ...] = ()) -> set[Any]:
    budget.spend(len(values))
    return set(values)


def _frozenset(budget: _Budget, values: list[Any] | tuple[Any, ...] = ()) -> frozenset[Any]:
    return frozenset(_set(budget, values))


ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): _ndarray,
    ("numpy", "dtype"): _dtype,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "scalar"): _scalar,
    ("numpy._core.numeric", "_frombuffer"): _frombuffer,
    ("_codecs", "encode"): _encode,  # protocol 2 writes bytes with it
    ("__builtin__", "bytes"): _no_bytes,  # protocol 2, for empty bytes
    ("__builtin__", "set"): _set,
    ("__builtin__", "frozenset"): _frozenset,
    ("builtins", "set"): _set,
    ("builtins", "frozenset"): _frozenset,
}
