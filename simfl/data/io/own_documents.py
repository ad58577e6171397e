"""Documents of the user: items with a question and a page, or tables of their own, in simfl's schema.

An item has `question`, `answers` and its page: `words`, `boxes`, `image` (or `image_path`), `provider`. Items of one
page share the page if they name it (`document`) or give it equally. Boxes may be lists of four numbers a word or one
flat list, an answer may be a text alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from simfl.data.base import DOCUMENTS, QUESTIONS, Split
from simfl.data.faults import shown
from simfl.data.io.own_items import Columns, to_table
from simfl.errors import DataError
from simfl.images import measure_image

PAGE = ("words", "boxes", "image", "image_path", "provider", "width", "height")  # fields of an item's page
NUMBERS = (int, float, np.integer, np.floating)


PAGE_FIELDS = frozenset({"words", "boxes", "image", "image_path"})  # of which any makes an item a page


def has_documents(columns: Columns) -> bool:
    """Return whether items are questions about documents, or documents without questions.

    Questions without a page are texts, for objectives such as `chat`.
    """
    return {"words", "boxes"} <= set(columns) or ("question" in columns and bool(PAGE_FIELDS & set(columns)))


def build_documents(columns: Columns, where: str) -> Split:
    """Return the questions and the documents of items; each document is stored once.

    Raises:
        DataError: An item has no page, or its words, boxes or answers cannot be read.
    """
    if "answer" in columns and "answers" not in columns:
        columns = {"answers" if name == "answer" else name: values for name, values in columns.items()}
    pages = {name: columns[name] for name in PAGE if name in columns}
    if not {"words", "image", "image_path"} & set(pages):
        raise DataError(
            f"{where}: items have a question, but no words and no image; their fields: {', '.join(columns)}"
        )
    count = len(next(iter(columns.values())))
    rows = [_page({name: values[i] for name, values in pages.items()}, f"{where}, item {i}") for i in range(count)]
    document, kept = _share(rows, columns.get("document"), where)
    others = {n: v for n, v in columns.items() if n not in PAGE and n not in QUESTIONS.names}
    examples = _questions(columns, document, where)
    if others:
        table, _ = to_table(others, where)
        for name in table.column_names:
            examples = examples.append_column(name, table[name])
    return Split(examples, _document_table(kept, "image_path" in pages, where))


def _page(given: dict[str, Any], where: str) -> dict[str, Any]:
    """Return the columns of a page."""
    words = given.get("words")
    if words is not None and (isinstance(words, (str, bytes)) or not hasattr(words, "__len__")):
        raise DataError(f"{where}: words is {shown(words)}, expected a list of texts")
    words = [] if words is None else list(words)
    for number, word in enumerate(words):
        if word is not None and not isinstance(word, str):
            raise DataError(f"{where}: word {number} is {shown(word)}, expected text")
    image = given.get("image")
    width, height = given.get("width"), given.get("height")
    if isinstance(image, bytes) and width is None and height is None:
        width, height = _measure(image)
    page = {"provider": _text(given.get("provider"), f"{where}: provider"), "words": words, "image": image}
    sizes = {"width": int(width or 0), "height": int(height or 0)}
    path = given.get("image_path")
    path = None if path is None else str(Path(path).absolute())  # workers may run in another folder
    return page | sizes | {"boxes": flat_boxes(given.get("boxes"), where), "image_path": path}


def _measure(image: bytes) -> tuple[int, int]:
    """Return the size of an image; 0 for one that is damaged, which the check of the data set finds."""
    try:
        return measure_image(image, "")
    except DataError:
        return 0, 0


def _text(value: object, where: str) -> str:
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, (str, int, np.integer)):
        raise DataError(f"{where} is {shown(value)}, expected text")
    return str(value)


def flat_boxes(boxes: Any, where: str) -> list[float | None]:
    """Return boxes as one flat list; a box that is null becomes four nulls.

    Raises:
        DataError: A box does not have four numbers.
    """
    if boxes is None:
        return []
    if isinstance(boxes, (str, bytes)) or not hasattr(boxes, "__len__"):
        raise DataError(f"{where}: boxes is {shown(boxes)}, expected four numbers for each word")
    flat: list[float | None] = []
    for number, box in enumerate(boxes.tolist() if hasattr(boxes, "tolist") else boxes):
        if isinstance(box, NUMBERS) and not isinstance(box, bool):
            flat.append(float(box))
        elif box is None:
            flat += [None] * 4
        else:
            flat += _numbers(box, f"{where}: the box of word {number}")
    return flat


def _numbers(box: Any, where: str) -> list[float | None]:
    values = list(box) if hasattr(box, "__len__") and not isinstance(box, (str, bytes)) else []
    fits = all(value is None or (isinstance(value, NUMBERS) and not isinstance(value, bool)) for value in values)
    if len(values) != 4 or not fits:
        raise DataError(f"{where} is {shown(box)}, expected four numbers: left, top, right, bottom")
    return [None if value is None else float(value) for value in values]


def _share(
    rows: Sequence[dict[str, Any]], names: Sequence[Any] | None, where: str
) -> tuple[list[int], dict[str, dict[str, Any]]]:
    """Return the document of each item, and the documents by their ids: the names given, or hashes of their content."""
    kept: dict[str, dict[str, Any]] = {}
    number: dict[str, int] = {}
    document = []
    for item, page in enumerate(rows):
        id = _hash(page) if names is None else _text(names[item], f"{where}, item {item}: document")
        if id not in kept:
            kept[id], number[id] = page, len(kept)
        elif names is not None and _hash(kept[id]) != _hash(page):
            raise DataError(f"{where}, item {item}: its page differs from the page that document {id!r} has before")
        document.append(number[id])
    return document, kept


def _hash(page: dict[str, Any]) -> str:
    digest = hashlib.sha256()
    for name, value in sorted(page.items()):
        digest.update(name.encode() + (value if isinstance(value, bytes) else repr(value).encode()) + b"\0")
    return digest.hexdigest()[:16]


def _questions(columns: Columns, document: Sequence[int], where: str) -> pa.Table:
    count = len(document)
    answers, fields = columns.get("answers", [None] * count), columns.get("field", [""] * count)
    values = {
        "id": [_text(id, f"{where}, item {i}: id") for i, id in enumerate(columns.get("id", range(count)))],
        "document": document,
        "question": columns.get("question", [""] * count),
        "answers": [answer_list(given, f"{where}, item {i}") for i, given in enumerate(answers)],
        "field": [_text(kind, f"{where}, item {i}: field") for i, kind in enumerate(fields)],
    }
    return _table(values, {f.name: f.type for f in QUESTIONS}, where)


def answer_list(given: Any, where: str) -> list[str | None]:
    """Return answers as a list; a text alone is one answer, null is none.

    Raises:
        DataError: An answer is not text.
    """
    if given is None or isinstance(given, str):
        return [] if given is None else [given]
    answers = list(given) if hasattr(given, "__len__") and not isinstance(given, (bytes, dict)) else [given]
    for answer in answers:
        if answer is not None and not isinstance(answer, str):
            raise DataError(f"{where}: an answer is {shown(answer)}, expected text or a list of texts")
    return answers


def _document_table(kept: dict[str, dict[str, Any]], has_paths: bool, where: str) -> pa.Table:
    types = {f.name: f.type for f in DOCUMENTS if not (has_paths and f.name == "image")}
    types |= {"image_path": pa.string()} if has_paths else {}
    values = {name: [page[name] for page in kept.values()] for name in types if name != "id"}
    return _table({"id": list(kept), **values}, types, where)


def _table(values: dict[str, Any], types: dict[str, pa.DataType], where: str) -> pa.Table:
    arrays = {}
    for name, type in types.items():
        try:
            arrays[name] = pa.array(values[name], type)
        except (pa.ArrowException, OverflowError, UnicodeError) as error:
            raise DataError(f"{where}: column {name!r}: {str(error).splitlines()[0]}") from None
    return pa.table(arrays)


def conform(split: Split, where: str) -> Split:
    """Return a split of the user with the types of simfl's schema, where its own can be converted without loss.

    Categories become their values, answers that are text become lists, nested boxes become flat, and missing ids
    become row numbers. A split that has the types already is returned unchanged.
    """
    examples = _plain(split.examples, where)
    if split.documents is None:
        return split if examples is split.examples else Split(examples)
    documents = _plain(split.documents, where)
    examples = _with_ids(_with_answer_lists(_with_document_numbers(examples), f"{where}, examples"))
    documents = _with_ids(_with_flat_boxes(documents, f"{where}, documents"))
    same = examples is split.examples and documents is split.documents
    return split if same else Split(examples, documents)


def _plain(table: pa.Table, where: str) -> pa.Table:
    """Return a table without dictionaries, views and large types, on whose layout hashes would depend."""
    for index, field in enumerate(table.schema):
        kind = _plain_type(field.type)
        if kind != field.type:
            try:
                table = table.set_column(index, field.name, table[field.name].cast(kind))
            except pa.ArrowException as error:
                raise DataError(f"{where}, column {field.name!r}: {str(error).splitlines()[0]}") from None
    return table


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        return _plain_type(kind.value_type)
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_large_list(kind) or (pa.types.is_list(kind) and _plain_type(kind.value_type) != kind.value_type):
        return pa.list_(_plain_type(kind.value_type))
    return kind


def _replaced(table: pa.Table, name: str, values: pa.Array | pa.ChunkedArray) -> pa.Table:
    return table.set_column(table.column_names.index(name), name, values)


def _with_ids(table: pa.Table) -> pa.Table:
    if "id" not in table.column_names:
        return table.add_column(0, "id", pa.array([str(row) for row in range(table.num_rows)], pa.string()))
    if pa.types.is_integer(table.schema.field("id").type):
        return _replaced(table, "id", table["id"].cast(pa.string()))
    return table


def _with_document_numbers(table: pa.Table) -> pa.Table:
    """Return a table whose column `document` is of integers, if it has whole numbers as floats."""
    if "document" in table.column_names and pa.types.is_floating(table.schema.field("document").type):
        try:
            return _replaced(table, "document", table["document"].cast(pa.int64()))
        except pa.ArrowInvalid:
            return table
    return table


def _with_answer_lists(table: pa.Table, where: str) -> pa.Table:
    if "answers" not in table.column_names or pa.types.is_list(table.schema.field("answers").type):
        return table
    lists = [answer_list(given, f"{where} row {row}") for row, given in enumerate(table["answers"].to_pylist())]
    return _replaced(table, "answers", pa.array(lists, pa.list_(pa.string())))


def _with_flat_boxes(table: pa.Table, where: str) -> pa.Table:
    if "boxes" not in table.column_names:
        return table
    kind = table.schema.field("boxes").type
    if not pa.types.is_list(kind):
        return table
    if pa.types.is_list(kind.value_type) or pa.types.is_fixed_size_list(kind.value_type):
        boxes = [flat_boxes(given, f"{where} row {row}") for row, given in enumerate(table["boxes"].to_pylist())]
        return _replaced(table, "boxes", pa.array(boxes, pa.list_(pa.float32())))
    if pa.types.is_integer(kind.value_type) or pa.types.is_float64(kind.value_type):
        return _replaced(table, "boxes", table["boxes"].cast(pa.list_(pa.float32())))
    return table
