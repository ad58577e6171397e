"""The files of SROIE (ICDAR 2019): receipts with their lines and their key, one by one.

img/NAME.jpg   the scan
box/NAME.csv   x1,y1,x2,y2,x3,y3,x4,y4,text a line; the text may hold commas, the corners are pixels of the scan
key/NAME.json  company, date, address, total
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from simfl.data.io.images import size_of
from simfl.errors import DataError

FIELDS = ("company", "date", "address", "total")
PARTS = {"img": (".jpg", ".jpeg", ".png"), "box": (".csv", ".txt"), "key": (".json", ".txt")}


@dataclass(frozen=True)
class Receipt:
    """One receipt as its files have it."""

    name: str
    image: Path
    words: tuple[str, ...]
    boxes: tuple[float, ...]  # 4 a word, flat: left, top, right, bottom in [0, 1]
    key: dict[str, str]  # only fields that are filled in

    @property
    def company(self) -> str:
        """The company whatever the spelling: the upper-case letters and digits of its name."""
        return letters(self.key.get("company", ""))

    @property
    def transcript(self) -> str:
        """All words, whatever the spacing, case and punctuation."""
        return letters("".join(self.words))


def letters(text: str) -> str:
    """Upper-case letters and digits alone."""
    return re.sub(r"[^A-Z0-9]", "", text.upper())


def files(root: Path) -> dict[str, dict[str, Path]]:
    """The files of every receipt, sorted by its name; DataError if a folder or a file is missing."""
    found: dict[str, dict[str, Path]] = {}
    for part, suffixes in PARTS.items():
        if not (root / part).is_dir():
            raise DataError(f"data.path: {root} has no folder {part}/; SROIE has img/, box/ and key/")
        for path in sorted((root / part).iterdir()):
            if path.suffix.lower() in suffixes:
                found.setdefault(path.stem, {})[part] = path
    for name, parts in found.items():
        for part in PARTS:
            if part not in parts:
                there = next(iter(parts.values())).relative_to(root)
                raise DataError(f"{root}: {there} has no companion {part}/{name}{PARTS[part][0]}")
    return dict(sorted(found.items()))


def read(name: str, parts: dict[str, Path]) -> Receipt:
    """One receipt; DataError names the file and the row that cannot be read."""
    words, boxes = _read_words(parts["box"], *size_of(parts["img"]))
    return Receipt(name, parts["img"], tuple(words), tuple(boxes), _read_key(parts["key"]))


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        row = error.object[: error.start].count(b"\n") + 1
        raise DataError(f"{path} row {row}: not UTF-8") from error


def _read_key(path: Path) -> dict[str, str]:
    try:
        key = json.loads(_text(path))
    except ValueError as error:
        raise DataError(f"{path}: not JSON ({error})") from error
    if not isinstance(key, dict):
        raise DataError(f"{path}: {type(key).__name__} given, a mapping of {', '.join(FIELDS)} is needed")
    for field in FIELDS:
        if not isinstance(key.get(field, ""), str):
            raise DataError(f"{path}: {field} is {key[field]!r}, text is needed")
    return {field: key[field].strip() for field in FIELDS if key.get(field, "").strip()}


def _read_words(path: Path, width: int, height: int) -> tuple[list[str], list[float]]:
    words: list[str] = []
    boxes: list[float] = []
    for text, (left, top, right, bottom) in _lines(path, width, height):
        for word, start, end in split_line(text):
            words.append(word)
            boxes += _inside(left + (right - left) * start, top, left + (right - left) * end, bottom)
    return words, boxes


def single_words(parts: dict[str, Path]) -> list[tuple[str, list[float]]]:
    """The lines of a receipt that are one word, each with left, top, right, bottom in [0, 1]: these boxes are exact."""
    lines = _lines(parts["box"], *size_of(parts["img"]))
    return [(text.strip(), _inside(*box)) for text, box in lines if len(text.split()) == 1]


def _lines(path: Path, width: int, height: int) -> Iterator[tuple[str, tuple[float, float, float, float]]]:
    """Text and box of each line; DataError names the row that cannot be read."""
    for row, line in enumerate(_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        *corners, text = line.strip("\r").split(",", 8)
        try:
            x, y = ([float(c) for c in corners[axis::2]] for axis in (0, 1))
            if len(x) != 4 or len(y) != 4:
                raise ValueError(f"{len(corners)} numbers")
        except ValueError as error:
            raise DataError(f"{path} row {row}: eight numbers and a text are needed ({error})") from error
        yield text, (min(x) / width, min(y) / height, max(x) / width, max(y) / height)


def split_line(text: str) -> Iterator[tuple[str, float, float]]:
    """The words of a line, each with where it begins and ends as shares of the line's characters.

    Only lines have boxes in SROIE, so a word's box is the part of its line that its characters take, as if all were
    equally wide.
    """
    text = text.strip()
    for match in re.finditer(r"\S+", text):
        yield match.group(), match.start() / len(text), match.end() / len(text)


def _inside(*values: float) -> list[float]:
    return [min(1.0, max(0.0, value)) for value in values]
