"""Checks of a data set before a run: faults that would become wrong numbers, each with split, row and column.

`require_sound` refuses a data set at its first fault; `simfl data check` lists the faults of every kind.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa

from simfl.data.arrays import filled, list_lengths, null_mask, to_numpy
from simfl.data.base import Dataset, Split
from simfl.data.faults import Fault, SplitTable, shown
from simfl.data.page_faults import page_faults
from simfl.errors import DataError
from simfl.images import measure_image

STORED = ("image",)  # columns of images in the tables
IMAGES = ("image", "image_path")  # and of files
SPLIT_NAME = re.compile(r"[\w-][\w.-]{0,99}")  # the first part of a file name
COLUMN_NAME = re.compile(r"[\w][\w .:/()%+#&,-]*")
NAMES, WRONG_TYPE, MISSING = "names that are not allowed", "columns of a wrong type", "columns that are missing"
NO_DOCUMENT = "examples whose document does not exist"
STRUCTURAL = (NAMES, WRONG_TYPE, MISSING, NO_DOCUMENT)  # kinds after which a split cannot be read further
COLUMN_LETTERS = "letters, digits, spaces and _ . : / ( ) % + # & , -"
SPLIT_LETTERS = "letters, digits, '_', '-' and '.', not beginning with '.'"


def require_sound(dataset: Dataset, decode: Sequence[str] = ()) -> None:
    """Raise DataError for the first fault of a data set; `decode` names columns whose images are decoded."""
    for fault in find_faults(dataset, decode):
        raise DataError(str(fault))


def find_faults(dataset: Dataset, decode: Sequence[str] = ()) -> Iterator[Fault]:
    """Yield the faults of all splits, one for each kind; `decode` names columns whose images are decoded."""
    for name, split in dataset.splits.items():
        if not SPLIT_NAME.fullmatch(name):
            yield Fault(shown(name), NAMES, 1, "", f"not a name; allowed: {SPLIT_LETTERS}")
            continue
        tables = _tables_of(name, split)
        faults = [fault for table in tables for fault in (*_name_faults(table), *_type_faults(table))]
        yield from faults
        if not faults:
            for table in tables:
                yield from _value_faults(table, decode)
            yield from _reference_faults(tables)


def require_split_name(name: str, where: str) -> str:
    """Return a name of a split, which becomes part of file names; DataError if it is not allowed."""
    if not SPLIT_NAME.fullmatch(name):
        raise DataError(f"{where}: {shown(name)} is not a name of a split; allowed: {SPLIT_LETTERS}")
    return name


def _tables_of(name: str, split: Split) -> list[SplitTable]:
    if split.documents is None:
        return [SplitTable(name, "", split.examples)]
    return [SplitTable(name, "examples", split.examples), SplitTable(name, "documents", split.documents)]


def _name_faults(table: SplitTable) -> Iterator[Fault]:
    for name in table.data.column_names:
        if not COLUMN_NAME.fullmatch(name):
            problem = f"not a name of a column; allowed: {COLUMN_LETTERS}"
            yield table.column_fault(NAMES, name, problem)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _innermost(kind: pa.DataType) -> pa.DataType:
    """Return the type of the values in nested lists."""
    while _is_list(kind):
        kind = kind.value_type
    return kind


def _is_texts(kind: pa.DataType) -> bool:
    return _is_list(kind) and _is_text(kind.value_type)


def _is_floats(kind: pa.DataType) -> bool:
    return _is_list(kind) and bool(pa.types.is_floating(kind.value_type))


Expected = tuple[Callable[[pa.DataType], bool], str]  # whether a type is right, and its description
TYPES: dict[str, dict[str, Expected]] = {  # of the columns that simfl's objectives read, by table
    "examples": {
        "document": (pa.types.is_integer, "the row of a document, an integer"),
        "question": (_is_text, "text"),
        "answers": (_is_texts, "a list of texts"),
    },
    "documents": {
        "words": (_is_texts, "a list of texts"),
        "boxes": (_is_floats, "a flat list of floats, 4 for each word"),
        "image": (_is_bytes, "an encoded image, as bytes"),
        "image_path": (_is_text, "text"),
    },
    "": {"image": (_is_bytes, "an encoded image, as bytes")},
}


def _type_faults(table: SplitTable) -> Iterator[Fault]:
    for name, (fits, described) in TYPES[table.name].items():
        if table.has(name) and not fits(table.data.schema.field(name).type):
            problem = f"its type is {table.data.schema.field(name).type}, expected {described}"
            yield table.column_fault(WRONG_TYPE, name, problem)
    if table.name == "examples" and not table.has("document"):
        yield table.column_fault(MISSING, "document", "missing, the row of a document is needed")
    if table.name == "documents" and table.has("words") and not table.has("boxes"):
        yield table.column_fault(MISSING, "boxes", "missing, but the documents have 'words'")


def _value_faults(table: SplitTable, decode: Sequence[str]) -> Iterator[Fault]:
    if table.name == "documents":
        yield from page_faults(table)
    if table.name == "examples" and table.has("question"):
        yield from _null_faults(table, "question")
    if table.name == "examples" and table.has("answers"):
        yield from _null_answer_faults(table)
    for name in table.data.column_names:
        if name != "boxes":
            yield from _number_faults(table, name)
    for name in decode:
        if table.has(name):
            yield from _image_faults(table, name)


def _null_faults(table: SplitTable, name: str) -> Iterator[Fault]:
    null = np.flatnonzero(null_mask(table.data[name]))
    if len(null):
        yield table.fault(f"{name}s that are null", len(null), int(null[0]), name, "null, expected text")


def _null_answer_faults(table: SplitTable) -> Iterator[Fault]:
    answers = table.data["answers"].combine_chunks()
    flat = answers.flatten()
    if flat.null_count:
        null = np.flatnonzero(null_mask(flat))
        ends = np.cumsum(list_lengths(answers))
        row = int(np.searchsorted(ends, null[0], side="right"))
        yield table.fault("answers that are null", len(null), row, "answers", "an answer is null, expected text")


def _number_faults(table: SplitTable, name: str) -> Iterator[Fault]:
    """Find numbers that are not finite, in a column of floats, of lists or of mappings; null is allowed."""
    kind, first = table.data.schema.field(name).type, 0
    if pa.types.is_struct(kind):
        inner = SplitTable(table.split, table.name, table.data.select([name]).flatten())
        for inner_name in inner.data.column_names:
            yield from _number_faults(inner, inner_name)
        return
    if not pa.types.is_floating(_innermost(kind)):
        return
    count, problem, bad_row = 0, "", 0
    for chunk in table.data[name].chunks:
        flat = chunk
        while _is_list(flat.type):
            flat = flat.flatten()
        wrong = np.flatnonzero(~np.isfinite(to_numpy(filled(flat, 0.0))))
        if len(wrong) and not count:
            bad_row = first + _row_of_value(chunk, int(wrong[0]))
            problem = f"{flat[int(wrong[0])].as_py()}, expected a finite number (null: unknown)"
        count, first = count + len(wrong), first + len(chunk)
    if count:
        yield table.fault("numbers that are not finite", count, bad_row, name, problem)


def _row_of_value(chunk: pa.Array, index: int) -> int:
    """Return the row of a value in the flattened array."""
    if _is_list(chunk.type) and _is_list(chunk.type.value_type):
        index = _row_of_value(chunk.flatten(), index)
    if pa.types.is_fixed_size_list(chunk.type) and not chunk.null_count:
        return index // int(chunk.type.list_size)
    if not _is_list(chunk.type):
        return index
    ends = np.cumsum(list_lengths(chunk))
    return int(np.searchsorted(ends, index, side="right"))


def _image_faults(table: SplitTable, name: str) -> Iterator[Fault]:
    """Find images that cannot be decoded: stored ones, or files."""
    column = table.data[name]

    def problem_of(row: int) -> str | None:
        image = column[row].as_py()
        if image is None:
            return None
        try:
            measure_image(image if isinstance(image, bytes) else Path(image), "", whole=True)
        except DataError as error:
            return str(error).removeprefix(": ")
        return None

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        problems = list(threads.map(problem_of, range(len(column))))
    bad = [row for row, problem in enumerate(problems) if problem is not None]
    if bad:
        yield table.fault("images that cannot be read", len(bad), bad[0], name, str(problems[bad[0]]))


def _reference_faults(tables: list[SplitTable]) -> Iterator[Fault]:
    """Find examples whose document does not exist."""
    if len(tables) < 2:
        return
    examples, documents = tables
    column, count = examples.data["document"], documents.data.num_rows
    rows = to_numpy(filled(column, -1))
    wrong = np.flatnonzero((rows < 0) | (rows >= count))
    if len(wrong):
        row = int(wrong[0])
        given = "null" if not column[row].is_valid else str(column[row])
        allowed = f"the split has documents 0 to {count - 1}" if count else "the split has no documents"
        problem = f"document {given}, but {allowed}"
        yield examples.fault(NO_DOCUMENT, len(wrong), row, "document", problem)
