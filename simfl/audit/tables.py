"""Changed columns of Arrow tables."""

from __future__ import annotations

from typing import Any

from simfl.runs.tables import Table


def with_column(table: Table, name: str, values: list[Any]) -> Table:
    """Return a table in which a column has other values of the same type."""
    return table.set_column(table.column_names.index(name), name, [values]).cast(table.schema)
