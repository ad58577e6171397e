"""Classes of a data set: labels are numbers from 0, or text that is numbered in alphabetical order.

text                      numbered; the names are recorded in the card and in the tables
whole numbers             carried, also as floats or booleans; the largest one defines the number of classes
negative, NaN, null, 0.5  refused where an objective reads classes
2**40, 10**6              refused: more classes than examples (or 1,000), unless the data set declares them
missing from train        refused, unless the data set declares its classes
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from simfl.data.arrays import null_mask, to_numpy
from simfl.data.base import CLASSES, Dataset, Split
from simfl.data.faults import Fault, SplitTable, shown
from simfl.errors import DataError

LABEL = "label"
FEW = 1000  # classes that a data set of few examples may have
FROM_TRAIN = "classes_from_train"  # entry of a card: its classes are those of the labels of train, not declared
TRAIN = "train"
KIND = "labels that are no classes"
Declared = int | Sequence[str] | None  # the number of classes, or their names; None: they follow from the labels


@dataclass(frozen=True)
class Classes:
    """The classes of a data set."""

    count: int
    names: tuple[str, ...] = ()  # of text labels, in the order of their numbers


@dataclass(frozen=True)
class _Labels:
    """The labels of a split."""

    split: str
    table: pa.Table

    @property
    def column(self) -> pa.ChunkedArray:
        return self.table[LABEL]

    @property
    def is_text(self) -> bool:
        kind = self.column.type
        return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))

    def fault(self, wrong: np.ndarray, problem: str) -> Fault | None:
        """Return the fault of the rows that are wrong; None if no row is."""
        rows = np.flatnonzero(wrong)
        if not len(rows):
            return None
        row = int(rows[0])
        given = f"{shown(self.column[row].as_py())}, {problem}"
        return SplitTable(self.split, "", self.table).fault(KIND, len(rows), row, LABEL, given)

    def column_fault(self, problem: str) -> Fault:
        """Return the fault of the whole column."""
        return SplitTable(self.split, "", self.table).column_fault(KIND, LABEL, problem)


def find_classes(splits: Mapping[str, Split], declared: Declared = None) -> Classes | Fault:
    """Return the classes that the labels of all splits are of, or the fault of the first label that is no class.

    Args:
        splits: The splits by name; those without labels are ignored.
        declared: The classes that the data set declares.
    """
    labels = [_Labels(name, split.examples) for name, split in splits.items() if LABEL in split.examples.column_names]
    for one in labels:
        if fault := one.fault(null_mask(one.column), "expected a class"):
            return fault
    texts = [one for one in labels if one.is_text]
    if not texts:
        return _numbered(labels, declared)
    for one in labels:
        if not one.is_text:
            return one.column_fault(f"{one.column.type}, but text in split {texts[0].split}")
    return _named(texts, declared)


def require_classes(dataset: Dataset, splits: Iterable[str]) -> None:
    """Raise DataError unless the labels of these splits are classes, which the card may declare."""
    if fault := class_fault(dataset, splits):
        raise DataError(str(fault))


def class_fault(dataset: Dataset, splits: Iterable[str]) -> Fault | None:
    """Return the fault of the first label that is no class, of those that the card declares or that train has."""
    names, count = dataset.card.get("classes"), dataset.card.get("num_classes")
    declared: Declared = None
    if not dataset.card.get(FROM_TRAIN):
        declared = [str(name) for name in names] if isinstance(names, (list, tuple)) else None
        declared = declared or (count if isinstance(count, int) else None)
    found = find_classes({name: dataset.splits[name] for name in splits}, declared)
    return found if isinstance(found, Fault) else None


def gaps(dataset: Dataset) -> list[str]:
    """Return a note if the numbers of classes have gaps, since a model has an output for each; none otherwise."""
    labels = _Labels(TRAIN, dataset.splits[TRAIN].examples)
    if not dataset.card.get(FROM_TRAIN) or labels.is_text:
        return []
    seen = np.unique(to_numpy(labels.column)).astype(np.int64)
    if len(seen) > int(seen[-1]):
        return []
    missing = int(np.setdiff1d(np.arange(int(seen[-1])), seen)[0])
    return [f"data, split train: {len(seen)} of the classes 0 to {seen[-1]} have examples, {missing} has none"]


def with_names(split: Split, classes: Classes) -> Split:
    """Return the split with the names of its classes in the metadata, from which text labels are numbered."""
    if not classes.names or LABEL not in split.examples.column_names:
        return split
    metadata = {**(split.examples.schema.metadata or {}), CLASSES: json.dumps(classes.names).encode()}
    return Split(split.examples.replace_schema_metadata(metadata), split.documents)


def _numbered(labels: Sequence[_Labels], declared: Declared) -> Classes | Fault:
    values: dict[str, np.ndarray] = {}
    for one in labels:
        kind = one.column.type
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
            return one.column_fault(f"its type is {kind}, expected one class for each example")
        numbers = to_numpy(one.column)
        if numbers.dtype.kind == "f" and (fault := one.fault(numbers != np.floor(numbers), "expected a whole number")):
            return fault
        if fault := one.fault(~((numbers >= 0) & (numbers < 2.0**62)), "expected a class, numbered from 0"):
            return fault
        values[one.split] = numbers.astype(np.int64)
    known = declared if declared is None or isinstance(declared, int) else len(declared)
    return _range_fault(labels, values, known) or Classes(known or 1 + max(map(_largest, values.values()), default=-1))


def _range_fault(labels: Sequence[_Labels], values: Mapping[str, np.ndarray], known: int | None) -> Fault | None:
    """Find a label above the declared classes; without them, one above the number of examples or not in train."""
    total = max(FEW, len(values[TRAIN]) if TRAIN in values else sum(map(len, values.values())))
    limit = total if known is None else known
    allowed = f"but the data declares {known} classes"
    if known is None:
        allowed = (
            f"above {total - 1:,}, as many classes as examples; number them from 0, or declare the classes of the data"
        )
    for one in labels:
        if fault := one.fault(values[one.split] >= limit, allowed):
            return fault
    if known is not None or TRAIN not in values:
        return None
    seen, missing = (
        np.unique(values[TRAIN]),
        "which no label of train is; leave it out, or declare the classes of the data",
    )
    faults = (one.fault(~np.isin(values[one.split], seen), missing) for one in labels)
    return next((fault for fault in faults if fault), None)


def _largest(numbers: np.ndarray) -> int:
    return int(numbers.max(initial=-1))


def _named(texts: Sequence[_Labels], declared: Declared) -> Classes | Fault:
    if declared is None or isinstance(declared, int):
        of_train = [pc.unique(one.column).to_pylist() for one in texts if one.split == TRAIN]
        names = tuple(sorted(name for found in of_train for name in found))
        expected = "which no label of train is; leave it out, or declare the classes of the data"
    else:
        names, expected = tuple(map(str, declared)), f"which is none of the {len(declared)} declared classes"
    for one in texts:
        unknown = ~to_numpy(pc.is_in(one.column, pa.array(names, one.column.type)))
        if fault := one.fault(unknown, expected):
            return fault
    if isinstance(declared, int) and len(names) != declared:
        return texts[0].column_fault(
            f"text of {len(names)} classes, but the data declares {declared}; give their names"
        )
    return Classes(len(names), names)
