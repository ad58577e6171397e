"""Output of commands: tables as text, and JSON whose first key names its schema and version.

Keys may be added to a schema without a new version. A version rises when a key is removed or changes its meaning.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

SCHEMAS = {  # version of the JSON of each command
    "data-check": 1,
}

json_option: Callable[..., Any] = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def print_json(kind: str, content: Mapping[str, object]) -> None:
    """Print facts as JSON with the name and version of their schema, such as `simfl/plan/1`."""
    click.echo(json.dumps({"schema": f"simfl/{kind}/{SCHEMAS[kind]}", **content}, indent=1, ensure_ascii=False))


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table with aligned columns."""
    widths = [max(len(str(row[i])) for row in (head, *rows)) for i in range(len(head))]
    for row in (head, *rows):
        click.echo("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())
