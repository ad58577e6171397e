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
    before, after = around(path, name)
    whole = f"{before}\n{text.strip()}\n{after}"
    files.write(path, lambda file: file.write(whole.encode()))


def around(path: Path, name: str) -> tuple[str, str]:
    """What a file has up to the first marker of this name, and from the last on; ConfigError if it has none."""
    try:
        whole = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    start = f"<!-- simfl: {name} -->"
    names = [found for found in re.findall(r"<!-- simfl: (.+?) -->", whole) if found != "end"]
    first = whole.find(start)
    if first < 0:
        hint = nearest(name, names) if names else f"write {start} and {END} where the table shall stand"
        raise ConfigError(f"{path}: no marker {start}; {hint}")
    last = whole.find(END, first)
    if last < 0:
        raise ConfigError(f"{path}: no {END} after {start}")
    return whole[: first + len(start)], whole[last:]
