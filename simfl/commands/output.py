"""Output of commands: tables as text, and JSON whose first key names its schema and version.

Keys may be added to a schema without a new version. A version rises when a key is removed or changes its meaning.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

SCHEMAS = {  # version of the JSON of each command
    "audit-canaries": 1,
    "audit-extraction": 1,
    "audit-inversion": 1,
    "audit-membership": 1,
    "check-privacy": 1,
    "convert": 1,
    "data-build": 1,
    "data-check": 1,
    "data-list": 1,
    "diff": 1,
    "doctor": 1,
    "explain": 1,
    "list": 1,
    "new-list": 1,
    "partition-show": 1,
    "plan": 1,
    "replay": 1,
    "sweep-list": 1,
    "table": 1,
    "verify": 1,
}

NARROWEST = 20  # columns of text that is wrapped
json_option: Callable[..., Any] = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def print_json(kind: str, content: Mapping[str, object]) -> None:
    """Print facts as JSON with the name and version of their schema, such as `simfl/plan/1`."""
    click.echo(json.dumps({"schema": f"simfl/{kind}/{SCHEMAS[kind]}", **content}, indent=1, ensure_ascii=False))


def line_width() -> int | None:
    """Return the columns of the terminal, or of the variable COLUMNS; None for a file or a pipe without it."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() or os.environ.get("COLUMNS") else None


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table with aligned columns; the last column is wrapped where the terminal is narrow."""
    widths = [max(len(str(row[i])) for row in (head, *rows)) for i in range(len(head))]
    start, width = sum(widths[:-1]) + 2 * (len(widths) - 1), line_width()
    rest = None if width is None else max(width - start, NARROWEST)
    for row in (head, *rows):
        first, *others = [row[-1]] if rest is None else textwrap.wrap(str(row[-1]), rest) or [""]
        cells = "  ".join(f"{cell:<{width}}" for cell, width in zip((*row[:-1], first), widths, strict=True))
        click.echo("\n".join([cells.rstrip(), *(" " * start + more for more in others)]))
