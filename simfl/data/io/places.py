"""Scenes of pictures from the probabilities of a Places365 classifier (Zhou et al. 2018).

    CSV    image,category,probability     one row or several for a picture; the most probable counts
    JSON   {"/a/airfield": "Transport", ...}     a scene for each category that has one

If categories_places365.txt lies beside the JSON map, categories that it does not name are refused.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from simfl.data.io import records
from simfl.errors import DataError, nearest

COLUMNS = ("image", "category", "probability")
KNOWN = "categories_places365.txt"


@dataclass(frozen=True)
class Scenes:
    """The scene of each picture that surely has one, and why others have none."""

    scene: Mapping[str, str]  # by the picture's name without its ending
    reason: Mapping[str, str]  # likewise

    def why_not(self, image: str) -> str:
        """Why a picture has no scene."""
        return self.reason.get(image, "picture without scene probabilities")


def read(probabilities: Path, scene_of: Path, confidence: float) -> Scenes:
    """The scene of each picture whose most probable category is more probable than `confidence` and has a scene."""
    scenes = _map(scene_of)
    best: dict[str, tuple[float, str]] = {}
    for where, row in _rows(probabilities):
        category, image = _plain(row["category"]), Path(row["image"]).stem
        try:
            probability = float(row["probability"])
        except ValueError:
            raise DataError(f"{where}: probability is {row['probability']!r}, a number is needed") from None
        best[image] = max(best.get(image, (0.0, "")), (probability, category))
    found: dict[str, str] = {}
    reason: dict[str, str] = {}
    for image, (probability, category) in best.items():
        if probability <= confidence:
            reason[image] = "scene not certain"
        elif category not in scenes:
            reason[image] = "category without a scene"
        else:
            found[image] = scenes[category]
    return Scenes(found, reason)


def _rows(path: Path) -> list[tuple[str, dict[str, str]]]:
    text = [line for _, line in records.lines(path)]
    reader = csv.DictReader(text)
    missing = [column for column in COLUMNS if column not in (reader.fieldnames or ())]
    if missing:
        raise DataError(f"{path} row 1: no column {missing[0]!r}, {', '.join(COLUMNS)} are needed")
    rows = [(f"{path} row {number}", row) for number, row in enumerate(reader, start=2)]
    for where, row in rows:
        if any(row[column] is None for column in COLUMNS):
            raise DataError(f"{where}: too few columns, {', '.join(COLUMNS)} are needed")
    return rows


def _map(path: Path) -> dict[str, str]:
    given = records.mapping(str(path), records.json_file(path))
    known = categories(path.parent / KNOWN) if (path.parent / KNOWN).is_file() else None
    for category, scene in given.items():
        if not isinstance(scene, str) or not scene:
            raise DataError(f"{path}: the scene of {category!r} is {scene!r}, text is needed")
        if known is not None and _plain(category) not in known:
            raise DataError(f"{path}: {category!r} is no category of {KNOWN}; {nearest(_plain(category), known)}")
    return {_plain(category): scene for category, scene in given.items()}


def categories(path: Path) -> list[str]:
    """The categories of a file with lines `/a/airfield 0`, in their order, without the letter before them."""
    return [_plain(line.split()[0]) for _, line in records.lines(path)]


def _plain(category: str) -> str:
    """`/a/airport_terminal` and `airport_terminal` are one."""
    category = category.strip()
    return category[3:] if len(category) > 3 and category[0] == category[2] == "/" else category.lstrip("/")
