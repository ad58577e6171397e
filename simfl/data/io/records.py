"""Reading and validation of text, JSON and LMDB files. Errors name the file, the row and the field.

The argument `where` is the file and row with which an error message starts.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np

from simfl.data.faults import shown
from simfl.data.page_faults import PIXELS, box_problem
from simfl.errors import DataError

Record = Mapping[str, object]

MAX_NAME_BYTES = 255  # of a file or folder, on all common file systems


def resolve_folder(path: str) -> Path:
    """Return the folder that a setting names, with `~` and `$VARIABLES` expanded; DataError if it does not exist."""
    root = Path(os.path.expandvars(path)).expanduser()
    if not root.is_dir():
        raise DataError(f"data.path: {root} is not a folder")
    return root


def resolve_file(path: str, setting: str = "data") -> Path:
    """Return the file that a setting names, with `~` and `$VARIABLES` expanded; DataError if it does not exist."""
    found = Path(os.path.expandvars(path)).expanduser()
    if not found.is_file():
        raise DataError(f"{setting}: {found} is not a file")
    return found


def find(root: Path, *names: str) -> Path | None:
    """Return the first of these files or folders that exists, or None.

    Raises:
        DataError: A name leads outside of the folder, as one in a foreign file may.
    """
    return next((path for name in names if (path := inside(root, name)).exists()), None)


def inside(root: Path, name: str, where: str = "") -> Path:
    """Return the path of a name that a file gives, relative to a folder.

    Raises:
        DataError: The name is absolute or leads outside of the folder; `where` is the file and row that gives it.
    """
    parts = Path(name).parts
    if not parts or Path(name).is_absolute() or ".." in parts or not _can_be_stored(parts):
        raise DataError(f"{where or root}: {shown(name)} is not the name of a file in the folder {root}")
    return root / name


def _can_be_stored(parts: Sequence[str]) -> bool:
    """Return whether a file system can hold these names."""
    try:
        return all(len(os.fsencode(part)) <= MAX_NAME_BYTES and "\0" not in part for part in parts)
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON can hold
        return False


def require(root: Path, *names: str) -> Path:
    """Return the first of these files or folders that exists; DataError if none does."""
    path = find(root, *names)
    if path is None:
        raise DataError(f"{root}: {' or '.join(names)} is missing")
    return path


def read_lines(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the file and row (from 1) and the text of each non-empty line of a UTF-8 file."""
    try:
        with path.open("rb") as file:
            for row, line in enumerate(file, start=1):
                where = f"{path} row {row}"
                try:
                    text = line.decode("utf-8-sig" if row == 1 else "utf-8").rstrip("\r\n")
                except UnicodeDecodeError:
                    raise DataError(f"{where}: not UTF-8") from None
                if text.strip():
                    yield where, text
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from error


def read_json_lines(path: Path) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield the file and row and the mapping of each line of a JSON lines file."""
    for where, line in read_lines(path):
        try:
            yield where, as_mapping(where, json.loads(line))
        except (ValueError, RecursionError) as error:
            raise DataError(f"{where}: not JSON ({error})") from error


def read_json(path: Path) -> object:
    """Return the content of a JSON file."""
    try:
        content: object = json.loads(path.read_bytes())
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not JSON ({error})") from error
    return content


def read_json_mapping(path: Path) -> dict[str, object]:
    """Return the content of a JSON file that holds a mapping."""
    return as_mapping(str(path), read_json(path))


def read_json_list(path: Path, field: str | None = None) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield the file and row (from 0) and each mapping of a JSON list, which may be a field of the file."""
    content = read_json(path)
    if field is not None:
        content = as_mapping(str(path), content).get(field)
    if not isinstance(content, list):
        raise DataError(f"{path}: {field or 'the content'} is {_type_name(content)}, expected a list")
    for row in range(len(content)):
        where = f"{path} row {row}"
        entry, content[row] = content[row], None  # a large file takes gigabytes as objects: free each entry once read
        yield where, as_mapping(where, entry)


@contextmanager
def open_lmdb(folder: Path) -> Iterator[Callable[[bytes], bytes | None]]:
    """Open an LMDB folder and yield a function that returns the value of a key, or None.

    The whole database is read once before, in a process of its own: a damaged one would end this process.

    Raises:
        DataError: the folder is not an LMDB, or is damaged, or the package lmdb is not installed.
    """
    try:
        lmdb = importlib.import_module("lmdb")
    except ImportError as error:
        raise DataError(f"{folder}: reading it needs lmdb; pip install 'simfl[readers]'") from error
    data = folder / "data.mdb"
    _require_readable(folder, data.stat().st_mtime_ns if data.is_file() else 0)
    try:
        environment = lmdb.open(os.fspath(folder), readonly=True, lock=False, readahead=False, meminit=False)
    except lmdb.Error as error:
        raise DataError(f"{folder}: not a readable LMDB ({error})") from error
    with environment, environment.begin() as transaction:
        yield transaction.get


READ_LMDB = """
import sys, zlib, lmdb
environment = lmdb.open(sys.argv[1], readonly=True, lock=False, readahead=True, meminit=False)
with environment, environment.begin(buffers=True) as transaction:
    for _, value in transaction.cursor():
        zlib.crc32(value)
"""


@cache
def _require_readable(folder: Path, changed: int) -> None:
    """Read all values of an LMDB in another process. DataError if that fails; `changed` is a time of modification."""
    done = subprocess.run([sys.executable, "-c", READ_LMDB, os.fspath(folder)], capture_output=True, text=True)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"reading it ends with signal {-done.returncode}"])[-1]
        raise DataError(f"{folder}: not a readable LMDB ({reason})")


def as_mapping(where: str, value: object, field: str = "") -> dict[str, object]:
    """Return the value if it is a mapping; DataError otherwise."""
    if not isinstance(value, dict):
        raise DataError(f"{where}: {field + ' is ' if field else ''}{_type_name(value)}, expected a mapping")
    return value


def as_list(where: str, value: object, field: str = "") -> list[object]:
    """Return the value if it is a list; DataError otherwise."""
    if not isinstance(value, list):
        raise DataError(f"{where}: {field + ' is ' if field else ''}{_type_name(value)}, expected a list")
    return value


def get_text(where: str, record: Record, *fields: str) -> str:
    """Return the text of the first of these fields that exists; DataError if it is blank or not text."""
    field, value = _first(record, fields)
    if not isinstance(value, str) or not value.strip():
        raise DataError(f"{where}: {field} is {_shown(value)}, expected text")
    return value


def get_identifier(where: str, record: Record, *fields: str) -> str:
    """Return an identifier that the file gives as text or as an integer."""
    field, value = _first(record, fields)
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        raise DataError(f"{where}: {field} is {_shown(value)}, expected text or an integer")
    return str(value)


def get_int(where: str, record: Record, *fields: str) -> int:
    """Return an integer that the file gives as a number or as digits."""
    field, value = _first(record, fields)
    try:
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise ValueError
        return int(value)
    except ValueError:
        raise DataError(f"{where}: {field} is {_shown(value)}, expected an integer") from None


def get_texts(where: str, record: Record, *fields: str) -> list[str]:
    """Return a list of texts."""
    field, value = _first(record, fields)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise DataError(f"{where}: {field} is {_shown(value)}, expected a list of texts")
    return value


def get_label(where: str, record: Record, field: str, labels: Mapping[str, int]) -> int:
    """Return the label of the class that a field names; DataError if the class is not in `labels`."""
    value = record.get(field)
    if not isinstance(value, str) or value not in labels:
        raise DataError(f"{where}: {field} is {_shown(value)}, allowed: {', '.join(labels)}")
    return labels[value]


def get_boxes(where: str, record: Record, field: str, num_words: int) -> np.ndarray:
    """Return one box for each word, clipped to [0, 1]: float32 [num_words, 4], left, top, right, bottom.

    Corners of published files may be in any order. DataError for boxes in pixels.
    """
    try:
        boxes = np.asarray(record.get(field), np.float32).reshape(num_words, 4)
    except (ValueError, TypeError):
        raise DataError(f"{where}: {field} does not have 4 numbers for each of {num_words} words") from None
    if not np.isfinite(boxes).all():
        raise DataError(f"{where}: {field} contains {boxes[~np.isfinite(boxes)][0]}")
    if boxes.max(initial=0.0) > PIXELS:
        raise DataError(
            f"{where}: {field} contains {boxes.max():g}, as boxes in pixels do; expected shares of the page"
        )
    return ordered_corners(np.clip(boxes, 0.0, 1.0))


def ordered_corners(boxes: np.ndarray) -> np.ndarray:
    """Return boxes [n, 4] as left, top, right, bottom, whichever two opposite corners are given."""
    pairs: np.ndarray = np.sort(boxes.reshape(-1, 2, 2), axis=1)
    return pairs.reshape(-1, 4)


def require_boxes(where: str, boxes: Sequence[float], words: Sequence[str]) -> None:
    """Raise DataError for a box that is not left, top, right, bottom as shares of the page; `boxes` is flat."""
    if len(boxes) != 4 * len(words):
        raise DataError(f"{where}: {len(words)} words have {len(boxes) / 4:g} boxes")
    if (found := box_problem(np.asarray(boxes, np.float64), words)) is not None:
        raise DataError(f"{where}: {found}")


def _first(record: Record, fields: tuple[str, ...]) -> tuple[str, object]:
    return next(((field, record[field]) for field in fields if field in record), (fields[0], None))


def _type_name(value: object) -> str:
    return "missing" if value is None else type(value).__name__


def _shown(value: object) -> str:
    shown = "missing" if value is None else repr(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."
