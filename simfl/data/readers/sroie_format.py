"""File format of SROIE (ICDAR 2019): receipts with their lines and their key fields.

img/NAME.jpg   the scan
box/NAME.csv   x1,y1,x2,y2,x3,y3,x4,y4,text a line; the text may contain commas, the corners are pixels of the scan
key/NAME.json  company, date, address, total
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from simfl.data.io.images import image_size
from simfl.errors import DataError

FIELDS = ("company", "date", "address", "total")
SUFFIXES = {"img": (".jpg", ".jpeg", ".png"), "box": (".csv", ".txt"), "key": (".json", ".txt")}
ReceiptFiles = Mapping[str, Path]  # img, box and key


@dataclass(frozen=True)
class Receipt:
    """One receipt as its files contain it."""

    name: str
    image: Path
    words: tuple[str, ...]
    boxes: tuple[float, ...]  # 4 a word, flat: left, top, right, bottom in [0, 1]
    key: dict[str, str]  # only fields that have a value

    @property
    def company(self) -> str:
        """Company normalized to the upper-case letters and digits of its name."""
        return normalize(self.key.get("company", ""))

    @property
    def transcript(self) -> str:
        """All words without spaces, case and punctuation."""
        return normalize("".join(self.words))


def normalize(text: str) -> str:
    """Return the letters and digits of a text, in upper case."""
    return re.sub(r"[^A-Z0-9]", "", text.upper())


def find_receipts(root: Path) -> dict[str, ReceiptFiles]:
    """Return the files of each receipt, sorted by name; DataError if a folder or a file is missing."""
    found: dict[str, dict[str, Path]] = {}
    for part, suffixes in SUFFIXES.items():
        if not (root / part).is_dir():
            raise DataError(f"data.path: {root} has no folder {part}/; SROIE has img/, box/ and key/")
        for path in sorted((root / part).iterdir()):
            if path.suffix.lower() in suffixes:
                found.setdefault(path.stem, {})[part] = path
    for name, files in found.items():
        for part in SUFFIXES:
            if part not in files:
                other = next(iter(files.values())).relative_to(root)
                raise DataError(f"{root}: {part}/{name}{SUFFIXES[part][0]} is missing, {other} exists")
    return dict(sorted(found.items()))


def read_receipt(name: str, files: ReceiptFiles) -> Receipt:
    """Read one receipt; DataError names the file and the row that cannot be read."""
    words, boxes = _read_words(files["box"], *image_size(files["img"]))
    return Receipt(name, files["img"], tuple(words), tuple(boxes), _read_key(files["key"]))


def read_single_words(files: ReceiptFiles) -> list[tuple[str, list[float]]]:
    """Return the lines of one word with left, top, right, bottom in [0, 1]; the boxes of these are exact."""
    lines = _read_lines(files["box"], *image_size(files["img"]))
    return [(text.strip(), _clip(*box)) for text, box in lines if len(text.split()) == 1]


def split_line(text: str) -> Iterator[tuple[str, float, float]]:
    """Yield the words of a line, each with its start and end as shares of the line's characters.

    SROIE has boxes of lines only, so the box of a word is interpolated in its line as if all characters had equal
    widths.
    """
    text = text.strip()
    for match in re.finditer(r"\S+", text):
        yield match.group(), match.start() / len(text), match.end() / len(text)


def _read_text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        row = error.object[: error.start].count(b"\n") + 1
        raise DataError(f"{path} row {row}: not UTF-8") from error


def _read_key(path: Path) -> dict[str, str]:
    try:
        key = json.loads(_read_text(path))
    except ValueError as error:
        raise DataError(f"{path}: not JSON ({error})") from error
    if not isinstance(key, dict):
        raise DataError(f"{path}: {type(key).__name__} given, expected a mapping of {', '.join(FIELDS)}")
    for field in FIELDS:
        if not isinstance(key.get(field, ""), str):
            raise DataError(f"{path}: {field} is {key[field]!r}, expected text")
    return {field: key[field].strip() for field in FIELDS if key.get(field, "").strip()}


def _read_words(path: Path, width: int, height: int) -> tuple[list[str], list[float]]:
    words: list[str] = []
    boxes: list[float] = []
    for text, (left, top, right, bottom) in _read_lines(path, width, height):
        for word, start, end in split_line(text):
            words.append(word)
            boxes += _clip(left + (right - left) * start, top, left + (right - left) * end, bottom)
    return words, boxes


def _read_lines(path: Path, width: int, height: int) -> Iterator[tuple[str, tuple[float, float, float, float]]]:
    """Yield the text and the box of each line; DataError names the row that cannot be read."""
    for row, line in enumerate(_read_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        *corners, text = line.strip("\r").split(",", 8)
        try:
            x, y = ([float(c) for c in corners[axis::2]] for axis in (0, 1))
            if len(x) != 4 or len(y) != 4:
                raise ValueError(f"{len(corners)} numbers")
        except ValueError as error:
            raise DataError(f"{path} row {row}: expected eight numbers and a text ({error})") from error
        yield text, (min(x) / width, min(y) / height, max(x) / width, max(y) / height)


def _clip(*values: float) -> list[float]:
    return [min(1.0, max(0.0, value)) for value in values]
