"""A part of a text file that a command writes, between two markers that stay.

<!-- simfl: NAME -->
…
<!-- simfl: end -->
"""

from __future__ import annotations

import re
from pathlib import Path

from simfl import files
from simfl.errors import ConfigError, nearest

END = "<!-- simfl: end -->"


def write_between(path: Path, name: str, text: str) -> None:
    """Replace what stands between the markers of this name; ConfigError if the file has none."""
    try:
        before = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    start = f"<!-- simfl: {name} -->"
    names = [found for found in re.findall(r"<!-- simfl: (.+?) -->", before) if found != "end"]
    first = before.find(start)
    if first < 0:
        hint = nearest(name, names) if names else f"write {start} and {END} where the table shall stand"
        raise ConfigError(f"{path}: no marker {start}; {hint}")
    last = before.find(END, first)
    if last < 0:
        raise ConfigError(f"{path}: no {END} after {start}")
    after = f"{before[: first + len(start)]}\n{text.strip()}\n{before[last:]}"
    files.write(path, lambda file: file.write(after.encode()))
