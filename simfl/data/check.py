"""What a person should know of a data set before training on it: counts, and what looks wrong."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from simfl.data import leaks
from simfl.data.base import Dataset, Split
from simfl.data.partition.base import column


@dataclass(frozen=True)
class Finding:
    """Something that looks wrong, or at least should be known."""

    split: str
    what: str
    count: int
    example: str = ""  # one of them
    wrong: bool = True  # false: to be known, as what a reader left out on purpose


@dataclass(frozen=True)
class Check:
    """A data set as it was found."""

    counts: dict[str, dict[str, int]]  # by split
    findings: tuple[Finding, ...]

    @property
    def fine(self) -> bool:
        """Whether nothing looks wrong."""
        return not any(finding.wrong for finding in self.findings)


def check(dataset: Dataset) -> Check:
    """Counts and findings of all splits."""
    found: list[Finding] = []
    for name, split in dataset.splits.items():
        found += [*_examples(name, split), *_pages(name, split), *_clients(name, split)]
    found += [*_card(dataset, "dropped"), *_card(dataset, "noted"), *_shared(dataset)]
    counts = {name: _counts(split) for name, split in dataset.splits.items()}
    return Check(counts, tuple(finding for finding in found if finding.count))


def _counts(split: Split) -> dict[str, int]:
    counts = {"examples": len(split)}
    if split.documents is not None:
        counts["documents"] = split.documents.num_rows
        counts["words"] = _lengths(split.documents["words"])
    for name in ("provider", "client", "label", "field", "domain", "source", "stage", "scene", "dataset"):
        table = split.examples if name in split.examples.column_names else split.documents
        if table is not None and name in table.column_names:
            counts[f"{name}s"] = len(set(table[name].to_pylist()) - {"", None, -1})
    return counts


def _lengths(lists: pa.ChunkedArray) -> int:
    return int(pc.sum(pc.list_value_length(lists)).as_py() or 0)


def _examples(name: str, split: Split) -> list[Finding]:
    examples, found = split.examples, list[Finding]()
    if "id" in examples.column_names:
        ids = Counter(examples["id"].to_pylist())
        twice = [id for id, count in ids.items() if count > 1]
        found.append(Finding(name, "duplicate ids", len(twice), twice[0] if twice else ""))
    if "answers" in examples.column_names:
        empty = np.flatnonzero(pc.list_value_length(examples["answers"]).to_numpy() == 0)
        found.append(Finding(name, "questions without an answer", len(empty), _id(examples, empty), wrong=False))
        blank = np.flatnonzero(pc.equal(examples["question"], "").to_numpy(zero_copy_only=False))
        found.append(Finding(name, "examples without a question", len(blank), _id(examples, blank), wrong=False))
        found.append(_not_printed(name, split))
    return found


def _not_printed(name: str, split: Split) -> Finding:
    """Questions with no answer in the words of their page, spaces and case aside; pages without words do not count."""
    assert split.documents is not None
    joined = ["".join(words or ()).casefold() for words in split.documents["words"].to_pylist()]
    rows = split.examples["document"].to_pylist()
    answers = split.examples["answers"].to_pylist()
    missing = [
        row
        for row, (page, told) in enumerate(zip(rows, answers, strict=True))
        if told and joined[page] and not any("".join(a.split()).casefold() in joined[page] for a in told)
    ]
    return Finding(name, "answers not among the page's words", len(missing), _id(split.examples, missing), wrong=False)


def _pages(name: str, split: Split) -> list[Finding]:
    pages = split.documents if split.documents is not None else split.examples
    found = []
    if "words" in pages.column_names:
        empty = np.flatnonzero(pc.list_value_length(pages["words"]).to_numpy() == 0)
        some = len(empty) < pages.num_rows  # photographs have no words at all
        found.append(Finding(name, "pages without words", len(empty), _id(pages, empty), wrong=some))
    if "image_path" in pages.column_names:
        paths = pages["image_path"].to_pylist()
        gone = [row for row, path in enumerate(paths) if path and not Path(path).is_file()]
        drawn = [row for row, path in enumerate(paths) if not path]  # pages of PDFs, which no file shows
        found.append(Finding(name, "pictures missing", len(gone), _id(pages, gone)))
        found.append(Finding(name, "pages without a picture file", len(drawn), _id(pages, drawn), wrong=False))
    elif "image" in pages.column_names:
        none = np.flatnonzero(pages["image"].is_null().to_numpy())
        found.append(Finding(name, "pictures missing", len(none), _id(pages, none)))
    return found


def _clients(name: str, split: Split) -> list[Finding]:
    """Providers of two official clients."""
    names = split.examples.column_names + (split.documents.column_names if split.documents is not None else [])
    if "client" not in names or "provider" not in names:
        return []
    codes, providers = column(split, "provider")
    clients, _ = column(split, "client")
    pairs = np.unique(np.stack([codes, clients]), axis=1)
    twice = np.flatnonzero(np.bincount(pairs[0], minlength=len(providers)) > 1)
    example = providers[int(twice[0])].as_py() if len(twice) else ""
    return [Finding(name, "providers in two clients", len(twice), example)]


def _card(dataset: Dataset, key: str) -> list[Finding]:
    """What the reader left out, or kept though it was odd; by split, or for the whole set."""
    told: Any = dataset.card.get(key) or {}
    found = []
    for name, reasons in told.items():
        pairs = reasons.items() if isinstance(reasons, dict) else [(name, reasons)]
        split = name if isinstance(reasons, dict) else "all"
        found += [
            Finding(split, f"{key}: {what}", int(count), wrong=_is_wrong(what))
            for what, count in pairs
            if isinstance(count, int)
        ]
    return found


def _is_wrong(reason: str) -> bool:
    return any(mark in reason for mark in ("missing", "unreadable", "duplicate", "no image", "not UTF-8"))


def _shared(dataset: Dataset) -> list[Finding]:
    """Equal pages within a split, and what the other splits have in common with training."""
    contents = {name: leaks.contents(split) for name, split in dataset.splits.items()}
    found = [_twice(name, pages) for name, pages in contents.items()]
    train = dataset.splits.get("train")
    for name, split in dataset.splits.items() if train is not None else ():
        if name == "train" or train is None:
            continue
        equal = leaks.equal(contents["train"], contents[name])
        found.append(Finding(name, "equal pages also in train", len(equal), equal[0] if equal else ""))
        for what, column_name in (("documents", leaks.DOCUMENT), ("providers", "provider")):
            if all(s.documents is not None and "provider" in s.documents.column_names for s in (train, split)):
                both = leaks.shared(train, split, column_name)
                wrong = what == "documents" or name == "unseen"
                found.append(Finding(name, f"{what} also in train", len(both), both[0] if both else "", wrong))
    return found


def _twice(name: str, pages: dict[str, list[str]]) -> Finding:
    again = [ids for ids in pages.values() if len(ids) > 1]
    example = " = ".join(again[0][:2]) if again else ""
    return Finding(name, "equal pages more than once", sum(len(ids) - 1 for ids in again), example, wrong=False)


def _id(table: pa.Table, rows: Any) -> str:
    return str(table["id"][int(rows[0])].as_py()) if len(rows) and "id" in table.column_names else ""
