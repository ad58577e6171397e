"""Columns inside columns: a dotted name such as `questions.text` reads a field of mappings, or of lists of mappings.

A list on the way gives one row for each of its items: a page with three questions becomes three rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from simfl.errors import ConfigError, nearest

Columns = dict[str, list[Any]]


def with_nested(columns: Columns, names: Iterable[str], where: str) -> tuple[Columns, list[int]]:
    """Return the columns with those of dotted names, and for each row the row that it came from.

    Args:
        columns: Columns by name; one whose own name has a dot is no path.
        names: Wanted names, dotted or not.
        where: The file, for error messages.

    Raises:
        ConfigError: A part of a dotted name does not exist, or two of them go through different lists.
    """
    found, opened = dict(columns), list[str]()
    origin = list(range(len(next(iter(columns.values()), []))))
    for name in names:
        parts = name.split(".")
        for depth in range(1, len(parts) if name not in columns else 1):
            head, field = ".".join(parts[:depth]), parts[depth]
            if head not in found:
                break  # the caller reports the missing column
            if any(isinstance(value, list) for value in found[head]):
                if opened and not head.startswith(f"{opened[-1]}."):
                    raise ConfigError(f"{where}: {opened[-1]!r} and {head!r} are lists; only one of them can give rows")
                found, origin = _exploded(found, head, origin)
                opened.append(head)
            found[f"{head}.{field}"] = _fields(found[head], head, field, where)
    used = {".".join(name.split(".")[:k]) for name in names for k in range(1, name.count(".") + 1)}
    return {name: values for name, values in found.items() if name not in used or name in names}, origin


def _exploded(columns: Columns, head: str, origin: list[int]) -> tuple[Columns, list[int]]:
    """Return one row for each item of the lists of a column; rows with no item are left out."""
    pairs = [
        (row, item)
        for row, value in enumerate(columns[head])
        if value is not None
        for item in (value if isinstance(value, list) else [value])
    ]
    rows = [row for row, _ in pairs]
    found = {name: [values[row] for row in rows] for name, values in columns.items() if name != head}
    found[head] = [item for _, item in pairs]
    return found, [origin[row] for row in rows]


def _fields(values: list[Any], head: str, field: str, where: str) -> list[Any]:
    known = {key: None for value in values if isinstance(value, Mapping) for key in value}
    if field not in known:
        hint = nearest(field, map(str, known)) if known else "its values are no mappings"
        raise ConfigError(f"data.columns: {where}: {head!r} has no field {field!r}; {hint}")
    return [value.get(field) if isinstance(value, Mapping) else None for value in values]
