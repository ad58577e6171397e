"""Records of foreign files, read with care: what is wrong is named with its file, row and field.

`where` is always the file and the row, as the message shall begin.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from simfl.errors import DataError

Record = Mapping[str, Any]


def folder(path: str) -> Path:
    """The folder of a data set; `~` and `$VARIABLES` are followed. DataError if it is none."""
    root = Path(os.path.expandvars(path)).expanduser()
    if not root.is_dir():
        raise DataError(f"data.path: {root} is not a folder")
    return root


def file(path: str) -> Path:
    """A file that a setting names; `~` and `$VARIABLES` are followed. DataError if it is none."""
    found = Path(os.path.expandvars(path)).expanduser()
    if not found.is_file():
        raise DataError(f"data: {found} is not a file")
    return found


def found(root: Path, *names: str) -> Path | None:
    """The first of these files or folders that is there, or None."""
    return next((root / name for name in names if (root / name).exists()), None)


def need(root: Path, *names: str) -> Path:
    """The first of these files or folders; DataError if none is there."""
    path = found(root, *names)
    if path is None:
        raise DataError(f"{root}: {' or '.join(names)} is missing")
    return path


def lines(path: Path) -> Iterator[tuple[str, str]]:
    """The lines of a UTF-8 file that are not empty, each with its file and row (from 1)."""
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


def json_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The mappings of a file with one a line, each with its file and row."""
    for where, line in lines(path):
        try:
            yield where, mapping(where, json.loads(line))
        except ValueError as error:
            raise DataError(f"{where}: not JSON ({error})") from error


def json_file(path: Path) -> Any:
    """The content of a JSON file."""
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from error
    except ValueError as error:
        raise DataError(f"{path}: not JSON ({error})") from error


def json_list(path: Path, field: str | None = None) -> Iterator[tuple[str, dict[str, Any]]]:
    """The mappings of a JSON list, each with its file and row (from 0); the list may be a field of the file."""
    content = json_file(path)
    if field is not None:
        content = mapping(str(path), content).get(field)
    if not isinstance(content, list):
        raise DataError(f"{path}: {field or 'the content'} is {_kind(content)}, a list is needed")
    for row in range(len(content)):
        where = f"{path} row {row}"
        entry, content[row] = content[row], None  # a large file takes gigabytes as objects; what is read is let go
        yield where, mapping(where, entry)


def mapping(where: str, value: Any, field: str = "") -> dict[str, Any]:
    """A mapping, or DataError."""
    if not isinstance(value, dict):
        raise DataError(f"{where}: {field + ' is ' if field else ''}{_kind(value)}, a mapping is needed")
    return value


def text(where: str, record: Record, *fields: str) -> str:
    """The text in the first of these fields that is there; DataError if it is empty or no text."""
    field, value = _first(record, fields)
    if not isinstance(value, str) or not value.strip():
        raise DataError(f"{where}: {field} is {_shown(value)}, text is needed")
    return value


def name(where: str, record: Record, *fields: str) -> str:
    """An identifier, given as text or as a whole number."""
    field, value = _first(record, fields)
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        raise DataError(f"{where}: {field} is {_shown(value)}, text or a whole number is needed")
    return str(value)


def whole(where: str, record: Record, *fields: str) -> int:
    """A whole number, given as such or as digits."""
    field, value = _first(record, fields)
    try:
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise ValueError
        return int(value)
    except ValueError:
        raise DataError(f"{where}: {field} is {_shown(value)}, a whole number is needed") from None


def texts(where: str, record: Record, *fields: str) -> list[str]:
    """A list of texts."""
    field, value = _first(record, fields)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise DataError(f"{where}: {field} is {_shown(value)}, a list of texts is needed")
    return value


def one_of(where: str, record: Record, field: str, allowed: Mapping[str, int]) -> int:
    """The number that a table gives for the text in a field."""
    value = record.get(field)
    if not isinstance(value, str) or value not in allowed:
        raise DataError(f"{where}: {field} is {_shown(value)}, allowed: {', '.join(allowed)}")
    return allowed[value]


def _first(record: Record, fields: tuple[str, ...]) -> tuple[str, Any]:
    return next(((field, record[field]) for field in fields if field in record), (fields[0], None))


def _kind(value: Any) -> str:
    return "missing" if value is None else type(value).__name__


def _shown(value: Any) -> str:
    shown = "missing" if value is None else repr(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."
