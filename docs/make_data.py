"""Writes the table of bundled benchmarks in docs/reference/data.md: `python docs/make_data.py [NAME ...]`.

Builds each bundled benchmark into an empty folder, measures the time, and reads the rest from its card. With names,
only their rows are updated. `--check` builds them and compares everything but time and size with the table.
`--into=FOLDER` keeps the builds in that folder. The text between the markers of data.md is generated; do not edit it.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # import simfl from the tree that contains this script

from simfl.data import DATA
from simfl.data.base import Dataset

FILE = Path(__file__).resolve().parent / "reference/data.md"
START, END = "<!-- simfl: bundled -->\n", "<!-- simfl: end -->"
COLUMNS = (
    "set", "clients", "documents", "questions", "groups", "majority", "question-only", "informed", "size", "built in",
    "hash",
)  # fmt: skip
UNSTABLE = ("size", "built in")  # columns that depend on the machine or on library versions
BUNDLED: dict[str, tuple[str, str]] = {  # name -> the columns whose values are the default clients and the groups
    "provider_invoices": ("client", "provider"),
    "multi_docqa": ("part", "provider"),
    "word5": ("source", "font"),
    "scene_vqa": ("scene", "provider"),
    "domains": ("domain", "class"),
}
INFORMED = ("informed", "nearest")  # names of the informed baseline in the cards


def main() -> None:
    """Update the table, or with `--check` exit with an error if it is not current."""
    names = [argument for argument in sys.argv[1:] if not argument.startswith("--")] or list(BUNDLED)
    into = next((argument.partition("=")[2] for argument in sys.argv if argument.startswith("--into=")), "")
    for name in names:
        with tempfile.TemporaryDirectory() as temporary:
            row = build_row(name, Path(into or temporary))
        text = FILE.read_text(encoding="utf-8")
        rows = read_rows(text)
        if "--check" in sys.argv:
            check_row(name, rows.get(name, []), row)
        else:
            rows[name] = row
            table = format_table([rows[key] for key in BUNDLED if key in rows])
            FILE.write_text(replace_table(text, table), encoding="utf-8")


def check_row(name: str, written: list[str], built: list[str]) -> None:
    """Exit with an error if a stable cell of the table differs from a new build."""
    for column, before, after in zip(COLUMNS, written or [""] * len(COLUMNS), built, strict=True):
        if column not in UNSTABLE and before != after:
            sys.exit(f"{FILE}: {name}, {column}: {before!r} written, {after!r} built; run {Path(__file__).name} {name}")


def read_rows(text: str) -> dict[str, list[str]]:
    """Return the cells of each row of the table in a text, by the name of the benchmark."""
    lines = text.partition(START)[2].partition(END)[0].splitlines()[2:]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {row[0].strip("`"): row for row in rows}


def format_table(rows: list[list[str]]) -> str:
    """Return the table in Markdown."""
    lines = [COLUMNS, ["---"] * len(COLUMNS), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def replace_table(text: str, table: str) -> str:
    """Return the text with this table between its markers."""
    before, _, rest = text.partition(START)
    return before + START + table + END + rest.partition(END)[2]


def build_row(name: str, folder: Path) -> list[str]:
    """Build a benchmark in a folder and return the cells of its row."""
    start = time.monotonic()
    dataset = DATA[name]().load(folder)
    seconds = time.monotonic() - start
    client, group = BUNDLED[name]
    num_pages = sum(split.documents.num_rows for split in dataset.splits.values() if split.documents is not None)
    assert dataset.folder is not None
    size = sum(path.stat().st_size for path in dataset.folder.iterdir())
    scores: Mapping[str, object] = dict(dataset.card)["baselines"]["test"]  # type: ignore[index]
    return [
        f"`{name}`",
        f"{_count_values(dataset, client, 'train')} ({client})",
        f"{num_pages:,}" if num_pages else "–",
        f"{sum(map(len, dataset.splits.values())):,}",
        f"{_count_values(dataset, group)} ({group})",
        *(_score(scores, names) for names in (("majority",), ("question_only",), INFORMED)),
        f"{size / 1e6:.1f} MB",
        f"{seconds:.0f} s",
        f"`{dataset.sha256[:12]}`",
    ]


def _count_values(dataset: Dataset, column: str, only: str = "") -> int:
    """Count the distinct values of a column of the examples or documents, of all splits or of one."""
    values: set[str] = set()
    for name, split in dataset.splits.items():
        tables = [split.examples, *([split.documents] if split.documents is not None else [])]
        table = next((t for t in tables if column in t.column_names), None)
        if table is not None and only in ("", name):
            values |= set(map(str, table[column].unique().to_pylist()))
    return len(values)


def _score(scores: Mapping[str, object], names: tuple[str, ...]) -> str:
    score = next((scores[name] for name in names if name in scores), None)
    if score is None:
        return "–"
    accuracy = score["accuracy"] if isinstance(score, Mapping) else score
    return f"{accuracy:.3f}"


if __name__ == "__main__":
    main()
