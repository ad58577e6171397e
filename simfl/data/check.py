"""Data set checks: counts, and findings that a user should know before training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from simfl.data import leaks
from simfl.data.base import DOCUMENTS, QUESTIONS, TRAIN, WORD_IMAGES, Dataset, Split
from simfl.data.base import IMAGES as DATA_IMAGES
from simfl.data.classes import class_fault
from simfl.data.io.roles import ROLES, suggested_columns
from simfl.data.partition.base import column
from simfl.data.soundness import IMAGES, STORED, STRUCTURAL, find_faults

READ = {*QUESTIONS.names, *DOCUMENTS.names, *DATA_IMAGES.names, *WORD_IMAGES.names, *ROLES}  # by objectives
SUGGESTED_ROWS = 200  # rows that suggestions for columns look at
GROUPS = ("provider", "client", "label", "field", "domain", "source", "stage", "scene", "dataset")


@dataclass(frozen=True)
class Finding:
    """One kind of problem or oddity in a split."""

    split: str
    message: str
    count: int
    example: str = ""  # one affected example
    is_error: bool = True  # false: for information, such as examples that a reader left out on purpose


@dataclass(frozen=True)
class ColumnUse:
    """Use of the columns of the split train."""

    read: dict[str, str]  # simfl's name -> column of the source
    kept: tuple[str, ...]  # further columns, to partition or to group by
    suggested: dict[str, str]  # a role that no column has -> the kept column that could have it
    classes: tuple[str, ...]  # names of the classes


@dataclass(frozen=True)
class DatasetReport:
    """Counts, findings and columns of a data set."""

    counts: dict[str, dict[str, int]]  # by split
    findings: tuple[Finding, ...]
    columns: ColumnUse

    @property
    def passed(self) -> bool:
        """True if no finding is an error."""
        return not any(finding.is_error for finding in self.findings)


def check_dataset(dataset: Dataset) -> DatasetReport:
    """Count and check all splits of a data set. A split whose tables are not in the schema is not checked further."""
    faults = list(find_faults(dataset, decode=STORED if dataset.folder is not None else IMAGES))
    found = [Finding(fault.split, fault.kind, fault.count, str(fault)) for fault in faults]
    found += _class_findings(dataset)
    broken = {fault.split for fault in faults if fault.kind in STRUCTURAL}
    dataset = replace(dataset, splits={n: split for n, split in dataset.splits.items() if n not in broken})
    for name, split in dataset.splits.items():
        found += [*_check_examples(name, split), *_check_pages(name, split), *_check_clients(name, split)]
    found += [*_card_findings(dataset, "dropped"), *_card_findings(dataset, "noted"), *_check_overlap(dataset)]
    counts = {name: _counts(split) for name, split in dataset.splits.items()}
    use = _column_use(dataset) if dataset.splits else ColumnUse({}, (), {}, ())
    return DatasetReport(counts, tuple(finding for finding in found if finding.count), use)


def _column_use(dataset: Dataset) -> ColumnUse:
    train = dataset.splits.get(TRAIN) or next(iter(dataset.splits.values()))
    tables = [train.examples, *([] if train.documents is None else [train.documents])]
    names = dict.fromkeys(name for table in tables for name in table.column_names)
    roles = dataset.card.get("roles")
    given = {str(role): theirs for role, theirs in roles.items()} if isinstance(roles, Mapping) else {}
    read = {name: _source(given.get(name, name)) for name in names if name in READ}
    kept = tuple(name for name in names if name not in READ)
    values = {
        n: train.examples[n].slice(0, SUGGESTED_ROWS).to_pylist() for n in kept if n in train.examples.column_names
    }
    listed = dataset.card.get("columns")
    present = listed[TRAIN] if isinstance(listed, Mapping) and TRAIN in listed else list(read)
    suggested = suggested_columns(values, present)
    classes = dataset.card.get("classes")
    return ColumnUse(read, kept, suggested, tuple(map(str, classes)) if isinstance(classes, (list, tuple)) else ())


def _source(given: object) -> str:
    return ", ".join(map(str, given)) if isinstance(given, (list, tuple)) else str(given)


def _class_findings(dataset: Dataset) -> list[Finding]:
    """Find labels that are no classes; numbers with fractions are for information, as an objective can predict them."""
    labelled = {n: split for n, split in dataset.splits.items() if split.documents is None}
    fault = class_fault(dataset, labelled)
    if fault is None:
        return []
    kind = labelled[fault.split].examples.schema.field("label").type
    return [Finding(fault.split, fault.kind, fault.count, str(fault), is_error=not pa.types.is_floating(kind))]


def _counts(split: Split) -> dict[str, int]:
    counts = {"examples": len(split)}
    if split.documents is not None:
        counts["documents"] = split.documents.num_rows
        counts["words"] = int(pc.sum(pc.list_value_length(split.documents["words"])).as_py() or 0)
    for name in GROUPS:
        table = split.examples if name in split.examples.column_names else split.documents
        if table is not None and name in table.column_names:
            counts[f"{name}s"] = len(set(table[name].to_pylist()) - {"", None, -1})
    return counts


def _check_examples(name: str, split: Split) -> list[Finding]:
    examples, found = split.examples, list[Finding]()
    if "id" in examples.column_names:
        ids = Counter(examples["id"].to_pylist())
        duplicates = [id for id, count in ids.items() if count > 1]
        found.append(Finding(name, "duplicate ids", len(duplicates), duplicates[0] if duplicates else ""))
    if "answers" in examples.column_names:
        empty = np.flatnonzero(pc.list_value_length(examples["answers"]).to_numpy() == 0)
        found.append(
            Finding(name, "questions without an answer", len(empty), _first_id(examples, empty), is_error=False)
        )
        blank = np.flatnonzero(pc.equal(examples["question"], "").to_numpy(zero_copy_only=False))
        found.append(
            Finding(name, "examples without a question", len(blank), _first_id(examples, blank), is_error=False)
        )
        found.append(_check_answers_printed(name, split))
    return found


def _check_answers_printed(name: str, split: Split) -> Finding:
    """Find questions whose page has words but prints none of the answers, ignoring white space and case."""
    assert split.documents is not None
    texts = ["".join(filter(None, words or ())).casefold() for words in split.documents["words"].to_pylist()]
    pages = split.examples["document"].to_pylist()
    answers = split.examples["answers"].to_pylist()
    absent = [
        row
        for row, (page, accepted) in enumerate(zip(pages, answers, strict=True))
        if accepted and texts[page] and not any("".join(a.split()).casefold() in texts[page] for a in accepted if a)
    ]
    message = "answers not among the page's words"
    return Finding(name, message, len(absent), _first_id(split.examples, absent), is_error=False)


def _check_pages(name: str, split: Split) -> list[Finding]:
    pages = split.documents if split.documents is not None else split.examples
    found = []
    if "words" in pages.column_names:
        empty = np.flatnonzero(pc.list_value_length(pages["words"]).to_numpy() == 0)
        some_have_words = len(empty) < pages.num_rows  # photographs have no words at all
        found.append(
            Finding(name, "pages without words", len(empty), _first_id(pages, empty), is_error=some_have_words)
        )
    if "image_path" in pages.column_names:
        paths = pages["image_path"].to_pylist()
        missing = [row for row, path in enumerate(paths) if path and not Path(path).is_file()]
        without_file = [row for row, path in enumerate(paths) if not path]  # pages of PDFs
        found.append(Finding(name, "missing images", len(missing), _first_id(pages, missing)))
        found.append(
            Finding(
                name, "pages without an image file", len(without_file), _first_id(pages, without_file), is_error=False
            )
        )
    elif "image" in pages.column_names:
        null = np.flatnonzero(pages["image"].is_null().to_numpy())
        found.append(Finding(name, "missing images", len(null), _first_id(pages, null)))
    return found


def _check_clients(name: str, split: Split) -> list[Finding]:
    """Find providers that belong to two official clients."""
    names = split.examples.column_names + (split.documents.column_names if split.documents is not None else [])
    if "client" not in names or "provider" not in names:
        return []
    codes, providers = column(split, "provider")
    clients, _ = column(split, "client")
    pairs = np.unique(np.stack([codes, clients]), axis=1)
    repeated = np.flatnonzero(np.bincount(pairs[0], minlength=len(providers)) > 1)
    example = providers[int(repeated[0])].as_py() if len(repeated) else ""
    return [Finding(name, "providers in two clients", len(repeated), example)]


def _card_findings(dataset: Dataset, key: str) -> list[Finding]:
    """Return what the reader dropped or noted, for each split or for the whole data set."""
    entries = dataset.card.get(key) or {}
    assert isinstance(entries, Mapping)
    found = []
    for name, reasons in entries.items():
        counts = reasons if isinstance(reasons, Mapping) else {name: reasons}
        split = name if isinstance(reasons, Mapping) else "all"
        found += [
            Finding(split, f"{key}: {reason}", count, is_error=_is_error(reason))
            for reason, count in counts.items()
            if isinstance(count, int)
        ]
    return found


def _is_error(reason: str) -> bool:
    return any(mark in reason for mark in ("missing", "unreadable", "duplicate", "no image", "not UTF-8"))


def _check_overlap(dataset: Dataset) -> list[Finding]:
    """Find equal examples within a split, and documents, providers and pages that other splits share with train."""
    hashes = {name: leaks.page_hashes(split) for name, split in dataset.splits.items()}
    found = [_equal_within(name, pages, _kind(dataset.splits[name])) for name, pages in hashes.items()]
    train = dataset.splits.get("train")
    for name, split in dataset.splits.items() if train is not None else ():
        if name == "train" or train is None:
            continue
        equal = leaks.equal_pages(hashes["train"], hashes[name])
        found.append(Finding(name, f"equal {_kind(split)} also in train", len(equal), equal[0] if equal else ""))
        for kind, column_name in (("documents", leaks.DOCUMENT), ("providers", "provider")):
            if all(s.documents is not None and "provider" in s.documents.column_names for s in (train, split)):
                both = leaks.shared_values(train, split, column_name)
                is_error = kind == "documents" or name == "unseen"
                found.append(Finding(name, f"{kind} also in train", len(both), both[0] if both else "", is_error))
    return found


def _kind(split: Split) -> str:
    """Return the word for what a split consists of, in the plural."""
    if split.documents is not None:
        return "pages"
    return next((f"{name}s" for name in ("image", "text") if name in split.examples.column_names), "examples")


def _equal_within(name: str, pages: Mapping[str, Sequence[str]], kind: str) -> Finding:
    repeated = [ids for ids in pages.values() if len(ids) > 1]
    example = " = ".join(repeated[0][:2]) if repeated else ""
    return Finding(name, f"equal {kind} more than once", sum(len(ids) - 1 for ids in repeated), example, is_error=False)


def _first_id(table: pa.Table, rows: Sequence[int] | np.ndarray) -> str:
    return str(table["id"][int(rows[0])].as_py()) if len(rows) and "id" in table.column_names else ""
