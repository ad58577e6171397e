"""Writes the table of bundled benchmarks in docs/data.md: `python docs/make_data.py [NAME …]`.

Each bundled benchmark is built into an empty folder and timed; its card gives the rest. With names only their rows are
made anew. `--into=FOLDER` keeps the builds there. Between the markers nothing is written by hand.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simfl.data import DATA
from simfl.data.base import Dataset

FILE = Path(__file__).parent / "data.md"
START, END = "<!-- simfl: bundled -->\n", "<!-- simfl: end -->"
COLUMNS = (
    "set", "clients", "documents", "questions", "groups", "majority", "question-only", "informed", "size", "built in",
    "hash",
)  # fmt: skip
BUNDLED: dict[str, tuple[str, str]] = {  # name: the column whose values are the usual clients, and that of the groups
    "provider_invoices": ("client", "provider"),
    "multi_docqa": ("part", "provider"),
    "word5": ("source", "font"),
    "scene_vqa": ("scene", "provider"),
    "domains": ("domain", "class"),
}
INFORMED = ("informed", "nearest")  # what a set calls its simple look


def main() -> None:
    """Write the file."""
    names = [argument for argument in sys.argv[1:] if not argument.startswith("--")] or list(BUNDLED)
    into = next((argument.partition("=")[2] for argument in sys.argv if argument.startswith("--into=")), "")
    for name in names:
        with tempfile.TemporaryDirectory() as temporary:
            made = _built(name, Path(into or temporary))
        text = FILE.read_text(encoding="utf-8")
        held = rows(text) | {name: made}
        FILE.write_text(replaced(text, table([held[key] for key in BUNDLED if key in held])), encoding="utf-8")


def rows(text: str) -> dict[str, list[str]]:
    """The cells of the table as it stands in the file, by set."""
    between = text.partition(START)[2].partition(END)[0].splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in between]
    return {row[0].strip("`"): row for row in cells}


def table(built: list[list[str]]) -> str:
    """The table in Markdown."""
    lines = [COLUMNS, ["---"] * len(COLUMNS), *built]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def replaced(text: str, content: str) -> str:
    """The file's text with this between the markers."""
    before, _, rest = text.partition(START)
    return before + START + content + END + rest.partition(END)[2]


def _built(name: str, folder: Path) -> list[str]:
    """The cells of one benchmark, built in this folder."""
    start = time.monotonic()
    dataset = DATA[name]().load(folder)
    return _row(name, dataset, f"{time.monotonic() - start:.0f} s")


def _row(name: str, dataset: Dataset, seconds: str) -> list[str]:
    client, group = BUNDLED[name]
    pages = sum(split.documents.num_rows for split in dataset.splits.values() if split.documents is not None)
    assert dataset.folder is not None
    size = sum(path.stat().st_size for path in dataset.folder.iterdir())
    scores: Mapping[str, Any] = dict(dataset.card)["baselines"]["test"]  # type: ignore[index]
    return [
        f"`{name}`",
        f"{_different(dataset, client, 'train')} ({client})",
        f"{pages:,}" if pages else "–",
        f"{sum(map(len, dataset.splits.values())):,}",
        f"{_different(dataset, group)} ({group})",
        *(_score(scores, names) for names in (("majority",), ("question_only",), INFORMED)),
        f"{size / 1e6:.1f} MB",
        seconds,
        f"`{dataset.sha256[:12]}`",
    ]


def _different(dataset: Dataset, column: str, only: str = "") -> int:
    """How many different values a column of the examples or documents has."""
    found: set[str] = set()
    for name, split in dataset.splits.items():
        tables = [split.examples, *([split.documents] if split.documents is not None else [])]
        held = next((t for t in tables if column in t.column_names), None)
        if held is not None and only in ("", name):
            found |= set(map(str, held[column].unique().to_pylist()))
    return len(found)


def _score(scores: Mapping[str, Any], names: tuple[str, ...]) -> str:
    found = next((scores[name] for name in names if name in scores), None)
    if found is None:
        return "–"
    value = found["accuracy"] if isinstance(found, Mapping) else found
    return f"{value:.3f}"


if __name__ == "__main__":
    main()
