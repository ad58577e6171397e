"""Roles of columns in a user's table, and suggestions for columns that have other names.

A suggestion appears in messages alone: simfl never takes a column for another one on its own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

INPUTS = ("text", "image", "features", "question", "words")  # of which an example has at least one
ROLES = (
    *INPUTS,
    "label",
    "answers",
    "boxes",
    "id",
    "field",
    "document",
    "provider",
    "client",
    "group",
    "split",
    "domain",
)
TEXTS = ("text", "image", "question", "answers", "id", "field", "document", "provider", "split", "domain")
OTHER_NAMES: dict[str, tuple[str, ...]] = {  # names that columns of a role have elsewhere
    "text": (
        "sentence", "review", "content", "body", "tweet", "comment", "message", "abstract", "utterance",
        "description", "texts", "post",
    ),
    "image": ("img", "image_path", "img_path", "path", "file_name", "filename", "file", "photo", "picture", "images"),
    "question": ("q", "query", "questions", "prompt", "instruction"),
    "answers": ("a", "answer", "response", "output", "completion"),
    "words": ("tokens", "ocr_tokens", "ocr_words"),
    "boxes": ("bboxes", "bbox", "box", "ocr_boxes"),
    "label": (
        "labels", "target", "class", "category", "sentiment", "y", "stars", "rating", "intent", "outcome",
        "diagnosis", "class_name", "class_label",
    ),
    "field": ("kind", "question_type", "type"),
    "document": ("doc_id", "docid", "page_id", "document_id"),
}  # fmt: skip
CLIENTS = (  # names of columns that make natural clients
    "client", "client_id", "user", "user_id", "author", "writer", "speaker", "patient", "hospital", "site", "device",
    "shop", "company", "provider", "group", "source", "domain",
)  # fmt: skip
MAX_CLASSES = 50  # distinct values of a column that may be a label
Values = Mapping[str, Sequence[Any]]


def suggested_columns(columns: Values, present: Collection[str] = ()) -> dict[str, str]:
    """Return roles that a user may have meant, with the columns that could have them.

    Args:
        columns: Columns by the file's own names.
        present: Roles that other columns have.
    """
    names = {**{name.lower(): name for name in columns}, **_nested_names(columns)}
    found: dict[str, str] = {}
    for role, others in OTHER_NAMES.items():
        theirs = next((names[other] for other in (role, *others) if other in names), role)
        found |= {role: theirs} if theirs != role else {}
    if not {*INPUTS} & {*found, *columns, *present}:
        guessed = _by_values(columns)
        found = {role: name for role, name in guessed.items() if role not in columns} | found
    found = {role: name for role, name in found.items() if role not in present}
    if {"question", "words"} & {*found, *columns, *present}:  # nothing but documents and texts with answers has these
        return {role: name for role, name in found.items() if role not in ("text", "label")}
    return {role: name for role, name in found.items() if role in ("text", "image", "label")}


def _nested_names(columns: Values) -> dict[str, str]:
    """Return the dotted names of fields in lists of mappings, by the name of the field."""
    found: dict[str, str] = {}
    for name, values in columns.items():
        first = next((value for value in values if value), None)
        item = first[0] if isinstance(first, list) else first
        if isinstance(item, Mapping):
            found |= {str(key).lower(): f"{name}.{key}" for key in item}
    return found


def _by_values(columns: Values) -> dict[str, str]:
    """Return the longest texts as `text`, and the column of the fewest values as `label`."""
    columns = {name: values for name, values in columns.items() if name not in ROLES}
    texts = {name: values for name, values in columns.items() if values and all(isinstance(v, str) for v in values)}
    if not texts:
        return {}
    text = max(texts, key=lambda name: sum(map(len, texts[name])))
    counts = {name: len(set(map(str, values))) for name, values in columns.items() if name != text and values}
    few = {name: count for name, count in counts.items() if 1 < count <= MAX_CLASSES}
    return {"text": text} | ({"label": min(few, key=lambda name: few[name])} if few else {})
