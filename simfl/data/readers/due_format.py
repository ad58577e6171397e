"""The files of the DUE benchmark (Borchmann et al. 2021), document by document.

    {train,dev,test}/document.jsonl            name, annotations: [{id, key, values: [{value, value_variants}]}]
    {train,dev,test}/documents_content.jsonl   name, contents: [{tool_name, tokens_layer or common_format}]
    pdfs/NAME.pdf    png/NAME/PAGE.png

The two go line by line. `val` stands for `dev` too. Older releases have one pair of files in the root with the split in
each line, or a documents.json with `client_features` in place of annotations.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from simfl.data.io import records
from simfl.data.io.records import Record
from simfl.errors import DataError, nearest

FOLDERS = {"train": ("train",), "valid": ("dev", "val"), "test": ("test",)}
DOCUMENTS, CONTENTS = ("document.jsonl", "documents.jsonl"), "documents_content.jsonl"
LAYERS = ("tokens_layer", "common_format")


@dataclass(frozen=True)
class Question:
    """A question, or the name of a field to be read off."""

    id: str
    key: str
    values: list[list[str]]  # what is right together; each with its variants, the value itself first


@dataclass(frozen=True)
class Ocr:
    """What one tool read on all pages of a document."""

    words: list[str]
    boxes: np.ndarray  # float64 [n, 4]: left, top, right, bottom in the units of the pages
    page: np.ndarray  # int64 [n]: the page of each word
    pages: np.ndarray  # float64 [p, 4]: where each page lies; [0, 4] where the tool does not say


def files(root: Path) -> dict[str, tuple[Path, Path]]:
    """The two files of each split that is there; DataError if there is none, or one lacks its companion."""
    found = {}
    for split, names in FOLDERS.items():
        folder = records.found(root, *names)
        if folder is not None and records.found(folder, *DOCUMENTS):
            found[split] = records.need(folder, *DOCUMENTS), records.need(folder, CONTENTS)
    if not found:
        whole = records.found(root, *DOCUMENTS, "documents.json")
        if whole is None:
            raise DataError(f"data.path: {root} has neither train/document.jsonl nor document.jsonl")
        found = {split: (whole, records.need(root, CONTENTS)) for split in FOLDERS}
    return found


def documents(split: str, pair: tuple[Path, Path]) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """File and row, annotations and contents of each document of a split; the two files must go line by line."""
    for left, right in zip_longest(_every(pair[0]), records.json_lines(pair[1])):
        if left is None or right is None:
            raise DataError(f"{pair[1] if right is None else pair[0]}: fewer documents than its companion")
        (where, document), (other, content) = left, right
        name = records.text(where, document, "name")
        if content.get("name") != name:
            raise DataError(f"{where}: {name!r} stands beside {content.get('name')!r} ({other})")
        if _is_of(split, where, document, pair[0]):
            yield where, document, content


def annotated(split: str, path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """File and row and annotations alone of each document of a split."""
    return ((where, document) for where, document in _every(path) if _is_of(split, where, document, path))


def _is_of(split: str, where: str, document: Record, path: Path) -> bool:
    if path.parent.name in FOLDERS[split]:
        return True
    known = {name: part for part, names in FOLDERS.items() for name in (part, *names)}
    told = document.get("split")
    if told not in known:
        raise DataError(f"{where}: split is {told!r}, allowed: {', '.join(known)}")
    return known[told] == split


def _every(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    return _json_documents(path) if path.suffix == ".json" else records.json_lines(path)


def _json_documents(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for where, document in records.json_list(path):
        features = document.pop("client_features", [])
        yield where, document | {"annotations": [{"key": f.get("name"), "values": [f], **f} for f in features]}


def questions(where: str, document: Record) -> Iterator[Question]:
    """The questions on a document; nested values (tables of results) are questions on each column."""
    given = document.get("annotations")
    if not isinstance(given, list):
        raise DataError(f"{where}: annotations is {type(given).__name__}, a list is needed")
    for number, annotation in enumerate(given):
        at = f"{where} annotation {number}"
        key = records.text(at, records.mapping(at, annotation), "key")
        values = annotation.get("values") or []
        meta = annotation.get("metadata") or {}
        id = str(meta.get("question_id") or annotation.get("id") or f"{document['name']}-{number}")
        plain = [variants(at, v) for v in values if "children" not in v]
        if plain or not values:
            yield Question(id, key, plain)
        for column, found in _children(values).items():
            yield Question(f"{id}-{column}", f"{key}: {column}", [variants(at, v) for v in found])


def variants(where: str, value: Any) -> list[str]:
    """A value and its variants, each once."""
    entry = records.mapping(where, value)
    first = [entry["value"]] if entry.get("value") is not None else []
    told = [*first, *(entry.get("value_variants") or [])]
    if not all(isinstance(v, str) for v in told):
        raise DataError(f"{where}: value is {told!r}, text is needed")
    return list(dict.fromkeys(told))


def _children(values: list[Mapping[str, Any]]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for value in values:
        for child in value.get("children", ()):
            found.setdefault(str(child.get("key")), []).extend(child.get("values") or [])
    return found


def ocr(where: str, content: Record, tool: str | None) -> Ocr:
    """What a tool read (None: the first of the file). DataError if the document was not given to it."""
    read = content.get("contents")
    if not isinstance(read, list) or not read:
        raise DataError(f"{where}: contents is empty, at least one OCR tool is needed")
    names = [str(entry.get("tool_name")) for entry in read]
    if tool is not None and tool not in names:
        raise DataError(f"{where}: no words by {tool!r}; {nearest(tool, names)}")
    chosen = read[0 if tool is None else names.index(tool)]
    field = next((f for f in LAYERS if f in chosen), LAYERS[0])
    return _layer(f"{where} {field}", records.mapping(where, chosen.get(field), field))


def _layer(where: str, layer: Record) -> Ocr:
    words = records.texts(where, layer, "tokens")
    boxes = _boxes(f"{where}: positions", layer.get("positions"))
    if len(boxes) != len(words):
        raise DataError(f"{where}: {len(words)} tokens have {len(boxes)} positions")
    pages = (layer.get("structures") or {}).get("pages") or {}
    page = np.zeros(len(words), np.int64)
    for number, (first, last) in enumerate(pages.get("structure_value") or ()):
        page[first:last] = number
    real = np.array([bool(word.strip()) for word in words], bool)  # an empty page is one blank token
    places = _boxes(f"{where}: structures.pages.positions", pages.get("positions"))
    return Ocr([word for word in words if word.strip()], boxes[real], page[real], places)


def _boxes(where: str, given: Any) -> np.ndarray:
    try:
        boxes = np.asarray(given or [], np.float64).reshape(-1, 4)
    except (ValueError, TypeError):
        raise DataError(f"{where} are not 4 numbers each") from None
    if not np.isfinite(boxes).all():
        raise DataError(f"{where} hold {boxes[~np.isfinite(boxes)][0]}")
    return boxes
