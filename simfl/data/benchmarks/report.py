"""What a bundled benchmark leaves beside its tables, and the ranges without which it is not shipped."""

from __future__ import annotations

import json
from collections.abc import Mapping

from simfl.data.base import Dataset
from simfl.data.io.drawing import contact_sheet
from simfl.errors import DataError

Range = tuple[float, float]


def report(dataset: Dataset, group: str) -> dict[str, bytes]:
    """`annotations.sha256`, `baselines.json` and `contact.png`, with pictures from each value of the column `group`."""
    baselines = json.dumps(dataset.card["baselines"], indent=1, sort_keys=True)
    return {
        "annotations.sha256": f"{dataset.sha256}\n".encode(),
        "baselines.json": f"{baselines}\n".encode(),
        "contact.png": contact_sheet(dataset.splits["train"], group),
    }


def hold(name: str, found: Mapping[str, float], ranges: Mapping[str, Range]) -> None:
    """DataError unless every number lies in its range, ends included: what blind guesses reach, how balanced it is."""
    for what, (low, high) in ranges.items():
        if not low <= found[what] <= high:
            raise DataError(f"{name}: {what} is {found[what]:.3f}, outside {low:g} to {high:g}: it is not shipped so")
