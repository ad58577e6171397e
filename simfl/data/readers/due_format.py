"""File format of the DUE benchmark (Borchmann et al. 2021), document by document.

    {train,dev,test}/document.jsonl            name, annotations: [{id, key, values: [{value, value_variants}]}]
    {train,dev,test}/documents_content.jsonl   name, contents: [{tool_name, tokens_layer or common_format}]
    pdfs/NAME.pdf    png/NAME/PAGE.png

Line i of both files belongs to the same document. `val` is accepted for `dev`. Older releases have one pair of files in
the root with the split in each line, or a documents.json with `client_features` in place of annotations.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import numpy as np

from simfl.data.io import records
from simfl.data.io.records import Record
from simfl.errors import DataError, nearest

FOLDERS = {"train": ("train",), "valid": ("dev", "val"), "test": ("test",)}
ANNOTATIONS, CONTENTS = ("document.jsonl", "documents.jsonl"), "documents_content.jsonl"
LAYERS = ("tokens_layer", "common_format")


@dataclass(frozen=True)
class DueFiles:
    """The two files of a split."""

    annotations: Path
    contents: Path


@dataclass(frozen=True)
class DueDocument:
    """One document with its annotations and, if they were read, its contents."""

    where: str  # file and row of the annotations, for error messages
    name: str
    annotations: Record
    contents: Record


@dataclass(frozen=True)
class DueQuestion:
    """A question, or the name of a field to extract."""

    id: str
    key: str
    values: list[list[str]]  # the values of the answer, each with its variants, the value itself first


@dataclass(frozen=True)
class DueOcr:
    """Words that one OCR tool found on all pages of a document."""

    words: list[str]
    boxes: np.ndarray  # float64 [n, 4]: left, top, right, bottom in the units of the pages
    page: np.ndarray  # int64 [n]: page of each word
    pages: np.ndarray  # float64 [p, 4]: box of each page; [0, 4] if the tool does not give it


def find_files(root: Path) -> dict[str, DueFiles]:
    """Return the files of each split that exists; DataError if there is none, or one of a pair is missing."""
    found = {}
    for split, names in FOLDERS.items():
        folder = records.find(root, *names)
        if folder is not None and records.find(folder, *ANNOTATIONS):
            found[split] = DueFiles(records.require(folder, *ANNOTATIONS), records.require(folder, CONTENTS))
    if not found:
        annotations = records.find(root, *ANNOTATIONS, "documents.json")
        if annotations is None:
            raise DataError(f"data.path: {root} has neither train/document.jsonl nor document.jsonl")
        found = {split: DueFiles(annotations, records.require(root, CONTENTS)) for split in FOLDERS}
    return found


def read_documents(split: str, files: DueFiles) -> Iterator[DueDocument]:
    """Yield the documents of a split; DataError if the lines of its files do not correspond."""
    pairs = zip_longest(_read_all(files.annotations), records.read_json_lines(files.contents))
    for annotated, content in pairs:
        if annotated is None or content is None:
            path = files.contents if content is None else files.annotations
            raise DataError(f"{path}: fewer documents than in the other file of the split")
        where, document = annotated
        name = records.get_text(where, document, "name")
        if content[1].get("name") != name:
            raise DataError(f"{where}: {name!r} does not match {content[1].get('name')!r} ({content[0]})")
        if _is_in_split(split, where, document, files.annotations):
            yield DueDocument(where, name, document, content[1])


def read_annotations(split: str, path: Path) -> Iterator[tuple[str, Record]]:
    """Yield the file and row and the annotations of each document of a split, without contents."""
    return ((where, document) for where, document in _read_all(path) if _is_in_split(split, where, document, path))


def _is_in_split(split: str, where: str, document: Record, path: Path) -> bool:
    if path.parent.name in FOLDERS[split]:
        return True
    known = {name: part for part, names in FOLDERS.items() for name in (part, *names)}
    given = document.get("split")
    if not isinstance(given, str) or given not in known:
        raise DataError(f"{where}: split is {given!r}, allowed: {', '.join(known)}")
    return known[given] == split


def _read_all(path: Path) -> Iterator[tuple[str, dict[str, object]]]:
    return _read_older(path) if path.suffix == ".json" else records.read_json_lines(path)


def _read_older(path: Path) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield the documents of a documents.json, with `client_features` converted to annotations."""
    for where, document in records.read_json_list(path):
        given = records.as_list(where, document.pop("client_features", []), "client_features")
        features = [records.as_mapping(where, feature) for feature in given]
        yield where, document | {"annotations": [{"key": f.get("name"), "values": [f], **f} for f in features]}


def read_questions(where: str, document: Record) -> Iterator[DueQuestion]:
    """Yield the questions on a document; nested values (tables of results) become a question on each column."""
    for number, entry in enumerate(records.as_list(where, document.get("annotations"), "annotations")):
        at = f"{where} annotation {number}"
        annotation = records.as_mapping(at, entry)
        key = records.get_text(at, annotation, "key")
        values = [records.as_mapping(at, v) for v in records.as_list(at, annotation.get("values") or [], "values")]
        metadata = records.as_mapping(at, annotation.get("metadata") or {}, "metadata")
        id = str(metadata.get("question_id") or annotation.get("id") or f"{document['name']}-{number}")
        plain = [variants(at, value) for value in values if "children" not in value]
        if plain or not values:
            yield DueQuestion(id, key, plain)
        for column, children in _columns(at, values).items():
            yield DueQuestion(f"{id}-{column}", f"{key}: {column}", [variants(at, child) for child in children])


def variants(where: str, value: object) -> list[str]:
    """Return a value and its distinct variants."""
    entry = records.as_mapping(where, value)
    first = [entry["value"]] if entry.get("value") is not None else []
    further = records.as_list(where, entry.get("value_variants") or [], "value_variants")
    texts = [text for text in [*first, *further] if isinstance(text, str)]
    if len(texts) < len(first) + len(further):
        raise DataError(f"{where}: value is {[*first, *further]!r}, expected text")
    return list(dict.fromkeys(texts))


def _columns(where: str, values: list[dict[str, object]]) -> dict[str, list[object]]:
    """Return the values of each column of nested values."""
    found: dict[str, list[object]] = {}
    for value in values:
        for entry in records.as_list(where, value.get("children", []), "children"):
            child = records.as_mapping(where, entry)
            cells = records.as_list(where, child.get("values") or [], "values")
            found.setdefault(str(child.get("key")), []).extend(cells)
    return found


def read_ocr(where: str, contents: Record, tool: str | None) -> DueOcr:
    """Return the words of an OCR tool (None: the first of the file); DataError if the tool is not in the file."""
    given = contents.get("contents")
    if not isinstance(given, list) or not given:
        raise DataError(f"{where}: contents is empty, expected at least one OCR tool")
    layers = [records.as_mapping(where, entry) for entry in given]
    names = [str(layer.get("tool_name")) for layer in layers]
    if tool is not None and tool not in names:
        raise DataError(f"{where}: no words of tool {tool!r}; {nearest(tool, names)}")
    layer = layers[0 if tool is None else names.index(tool)]
    field = next((f for f in LAYERS if f in layer), LAYERS[0])
    return _parse_layer(f"{where} {field}", records.as_mapping(where, layer.get(field), field))


def _parse_layer(where: str, layer: Record) -> DueOcr:
    words = records.get_texts(where, layer, "tokens")
    boxes = _boxes(f"{where}: positions", layer.get("positions"))
    if len(boxes) != len(words):
        raise DataError(f"{where}: {len(words)} tokens have {len(boxes)} positions")
    structures = records.as_mapping(where, layer.get("structures") or {}, "structures")
    pages = records.as_mapping(where, structures.get("pages") or {}, "structures.pages")
    page = np.zeros(len(words), np.int64)
    spans = records.as_list(where, pages.get("structure_value") or [], "structures.pages.structure_value")
    for number, span in enumerate(spans):
        first, last = records.as_list(where, span, "structures.pages.structure_value")
        page[first:last] = number
    is_word = np.array([bool(word.strip()) for word in words], bool)  # an empty page is one blank token
    page_boxes = _boxes(f"{where}: structures.pages.positions", pages.get("positions"))
    return DueOcr([word for word in words if word.strip()], boxes[is_word], page[is_word], page_boxes)


def _boxes(where: str, value: object) -> np.ndarray:
    try:
        boxes = np.asarray(value or [], np.float64).reshape(-1, 4)
    except (ValueError, TypeError):
        raise DataError(f"{where} does not have 4 numbers for each box") from None
    if not np.isfinite(boxes).all():
        raise DataError(f"{where} contains {boxes[~np.isfinite(boxes)][0]}")
    return boxes
