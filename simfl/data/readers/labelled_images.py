"""Pictures with a class and a domain: the split, its card and its hash."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from simfl.data.base import PICTURES, Dataset, Split
from simfl.data.io.arrow_store import content_sha256
from simfl.data.io.gather import Columns, Missing
from simfl.data.io.images import shrink
from simfl.errors import DataError


@dataclass(frozen=True)
class Labelled:
    """A picture file, as its list or folder tells it."""

    where: str  # file and row, for messages
    id: str
    path: Path
    label: int
    kind: str  # the name of its class
    domain: str


def dataset(
    name: str, told: Mapping[str, Sequence[Labelled]], size: int, missing: Missing, licence: str, **more: object
) -> Dataset:
    """The data set of these pictures, squeezed. Its hash is of the source files, whatever the version of Pillow.

    DataError if a picture cannot be read, or is not there unless such ones are dropped.
    """
    there = {split: [one for one in pictures if _is_there(one, missing)] for split, pictures in told.items()}
    splits = {split: _split(pictures, size) for split, pictures in there.items()}
    classes = {one.label: one.kind for pictures in told.values() for one in pictures}
    sources = hashlib.sha256()
    for split in sorted(there):
        for one in there[split]:
            sources.update(one.path.read_bytes())
    card = {
        "licence": licence,
        "shape": [3, size, size],
        "num_classes": max(classes, default=-1) + 1,
        "classes": [classes.get(label, "") for label in range(max(classes, default=-1) + 1)],
        "domains": {split: dict(sorted(Counter(one.domain for one in p).items())) for split, p in there.items()},
        "examples": {split: len(pictures) for split, pictures in there.items()},
        "dropped": {s: {"picture missing": n} if (n := len(told[s]) - len(there[s])) else {} for s in told},
        "image": f"colour, squeezed to {size}x{size}, JPEG",
        **more,
    }
    return Dataset(name, splits, content_sha256(splits, also=f"{sources.hexdigest()} {size}"), card)


def _is_there(one: Labelled, missing: Missing) -> bool:
    there = one.path.is_file()
    if not there and missing == "refuse":
        raise DataError(f"{one.where}: the picture {one.path} is not there")
    return there


def _split(pictures: Iterable[Labelled], size: int) -> Split:
    columns = Columns(PICTURES)
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        for one in pictures:
            image = threads.submit(partial(shrink, one.path, size, "RGB", "JPEG"))
            values = {"id": one.id, "image": image, "width": size, "height": size, "label": one.label}
            columns.add(**values, **{"class": one.kind, "domain": one.domain})
        return Split(columns.table())
