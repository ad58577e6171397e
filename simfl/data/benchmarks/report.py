"""Files stored with a bundled benchmark, and limits that its baselines must meet."""

from __future__ import annotations

import json
from collections.abc import Mapping

from simfl.data.base import Dataset
from simfl.data.io.contact_sheet import contact_sheet
from simfl.errors import DataError

Range = tuple[float, float]


def report(dataset: Dataset, group: str) -> dict[str, bytes]:
    """Return `annotations.sha256`, `baselines.json` and `contact.png` by file name.

    The contact sheet shows training pictures for each value of the column `group`.
    """
    baselines = json.dumps(dataset.card["baselines"], indent=1, sort_keys=True)
    return {
        "annotations.sha256": f"{dataset.sha256}\n".encode(),
        "baselines.json": f"{baselines}\n".encode(),
        "contact.png": contact_sheet(dataset.splits["train"], group),
    }


def check_ranges(name: str, found: Mapping[str, float], ranges: Mapping[str, Range]) -> None:
    """Raise DataError if a measured number of benchmark `name` is outside its range (both ends included)."""
    for quantity, (low, high) in ranges.items():
        if not low <= found[quantity] <= high:
            raise DataError(
                f"{name}: {quantity} is {found[quantity]:.3f}, allowed: {low:g} to {high:g}; the build is rejected"
            )
