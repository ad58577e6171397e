"""What readers of visual question answering share: answers of many annotators, and where pictures lie.

The schema is that of documents without words. `counts` says how many annotators gave each answer, so that every scoring
rule can be applied later (ViLT's 0.3, 0.6, 0.9, 1; min(n/3, 1); 1 for the only answer).
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa

from simfl.data.io import records
from simfl.errors import DataError

COUNTS = ("counts", pa.list_(pa.int32()))  # how many annotators gave each of the answers


def tally(where: str, given: Any, field: str = "answers") -> tuple[list[str], list[int]]:
    """The different answers, most frequent first and in the order given, and how often each was.

    `given` is a list of texts, or of mappings with `answer`; None, where answers are withheld, gives nothing.
    """
    if given is None:
        return [], []
    if not isinstance(given, list):
        raise DataError(f"{where}: {field} is {type(given).__name__}, a list is needed")
    told: list[str] = []
    for number, entry in enumerate(given):
        answer = entry.get("answer") if isinstance(entry, dict) else entry
        if not isinstance(answer, str):
            raise DataError(f"{where}: {field} {number} is {answer!r}, text is needed")
        told.append(answer)
    counts = Counter(answer.strip() for answer in told if answer.strip())
    ranked = counts.most_common()  # ties in the order in which they came
    return [answer for answer, _ in ranked], [count for _, count in ranked]


def picture(root: Path, name: str, *folders: str) -> Path:
    """The picture of this name in the first of these folders that has it, or where it should be in the first."""
    return records.found(root, *(f"{folder}/{name}" for folder in folders)) or root / folders[0] / name
