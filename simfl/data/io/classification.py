"""Classification splits: feature arrays with labels, and image files with a class and a domain."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from simfl.data.base import IMAGES, Dataset, Split
from simfl.data.classes import FEW
from simfl.data.io.arrow_store import content_sha256
from simfl.data.io.images import MissingImages, resize_image
from simfl.data.io.tables import TableBuilder
from simfl.errors import DataError


def feature_split(features: np.ndarray, labels: np.ndarray, **columns: pa.Array) -> Split:
    """Build a split of float features [N, ...] and integer labels [N], with further columns to group by."""
    flat = np.ascontiguousarray(features, np.float32).reshape(len(features), -1)
    lists = pa.FixedSizeListArray.from_arrays(pa.array(flat.reshape(-1)), flat.shape[1])
    return Split(pa.table({"features": lists, "label": pa.array(labels, pa.int32())} | columns))


@dataclass(frozen=True)
class LabeledImage:
    """An image file with its class and domain."""

    where: str  # file and row that lists it, for error messages
    id: str
    path: Path
    label: int
    class_name: str
    domain: str


def build_image_dataset(
    name: str,
    images: Mapping[str, Sequence[LabeledImage]],
    size: int,
    missing: MissingImages,
    licence: str,
    **card: object,
) -> Dataset:
    """Build a data set of images resized to `size` x `size` pixels.

    Its hash is of the source files, so it does not depend on Pillow's version.

    Args:
        name: Name of the data set.
        images: The images of each split.
        size: Pixels of each side.
        missing: Whether a missing image file is an error (`refuse`) or is counted and left out (`drop`).
        licence: Licence of the images, for the card.
        **card: Further entries of the card.

    Raises:
        DataError: an image cannot be read, or is missing and not dropped.
    """
    found = {split: [image for image in listed if _exists(image, missing)] for split, listed in images.items()}
    splits = {split: _split(listed, size) for split, listed in found.items()}
    classes = {image.label: image.class_name for listed in images.values() for image in listed}
    num_classes = max(classes, default=-1) + 1
    if num_classes > max(FEW, sum(map(len, found.values()))):
        last = next(image for listed in found.values() for image in listed if image.label == num_classes - 1)
        raise DataError(
            f"{last.where}: label {last.label}, but there are fewer images than classes; number them from 0"
        )
    sources = hashlib.sha256()
    for split in sorted(found):
        for image in found[split]:
            sources.update(image.path.read_bytes())
    described = {
        "licence": licence,
        "shape": [3, size, size],
        "num_classes": num_classes,
        "classes": [classes.get(label, "") for label in range(num_classes)],
        "domains": {split: dict(sorted(Counter(i.domain for i in listed).items())) for split, listed in found.items()},
        "examples": {split: len(listed) for split, listed in found.items()},
        "dropped": {s: {"image missing": n} if (n := len(images[s]) - len(found[s])) else {} for s in images},
        "image": f"colour, resized to {size}x{size}, JPEG",
        **card,
    }
    return Dataset(name, splits, content_sha256(splits, also=f"{sources.hexdigest()} {size}"), described)


def _exists(image: LabeledImage, missing: MissingImages) -> bool:
    exists = image.path.is_file()
    if not exists and missing == "refuse":
        raise DataError(f"{image.where}: the image {image.path} is missing")
    return exists


def _split(images: Iterable[LabeledImage], size: int) -> Split:
    table = TableBuilder(IMAGES)
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        for image in images:
            encoded = threads.submit(partial(resize_image, image.path, size, "RGB", "JPEG"))
            values = {"id": image.id, "image": encoded, "width": size, "height": size, "label": image.label}
            table.add(**values, **{"class": image.class_name, "domain": image.domain})
        return Split(table.table())
