"""A comparison as Markdown, CSV or LaTeX."""

from __future__ import annotations

import csv as csv_files
import io
from typing import Any

from simfl.reports.table import LEVEL, Comparison, Line, Score
from simfl.tracking.progress import duration, size

WAYS = ("download", "upload")
MARK, DAGGER = "†", r"$^\dagger$"


def notes(found: Comparison) -> list[str]:
    """What a reader must know of the numbers."""
    said = []
    if _has_seeds(found):
        said.append("mean ± standard deviation over the seeds")
    if any(score.p is not None for line in found.lines for score in line.scores.values()):
        same = " where all else is the same" if len(found.settings) > 1 else ""
        test = f"paired bootstrap over the common examples, p < {LEVEL}"
        said.append(f"{MARK} differs from {found.against}{same}: {test}")
    failed = [run for line in found.lines for run in line.runs if run.status == "failed"]
    said += [f"{run.label} failed: {run.error}" for run in failed]
    return said


def markdown(found: Comparison) -> str:
    """A table with the best in bold, and notes under it."""
    header = _header(found)
    left = len(found.settings or ("run",))
    rule = ["---" if i < left else "---:" for i in range(len(header))]
    lines = [_cells(found, i, " ± ", "**{}**", MARK) for i in range(len(found.lines))]
    rows = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in [header, rule, *lines]]
    said = [f"- {note}" for note in notes(found)]
    return "\n".join([*rows, *([""] if said else []), *said]) + "\n"


def csv(found: Comparison) -> str:
    """Plain numbers: mean, deviation and p in columns of their own, bytes and seconds as they are."""
    out = io.StringIO()
    writer = csv_files.writer(out, lineterminator="\n")
    parts = [f"{metric}{end}" for metric in found.metrics for end in ("", "_deviation", "_p")]
    ways = [f"{way}_bytes" for way in WAYS]
    writer.writerow([*(found.settings or ("run",)), "seeds", *parts, *ways, "seconds"])
    for line in found.lines:
        row: list[Any] = [*line.shown.values()] or [line.runs[0].label]
        row.append(len(line.done))
        for metric in found.metrics:
            score = line.scores.get(metric)
            row += [score.mean, score.deviation, score.p] if score is not None else [None] * 3
        row += [line.mean_of("bytes", way) for way in WAYS]
        writer.writerow([*row, line.mean_of("seconds", "total")])
    return out.getvalue()


def latex(found: Comparison) -> str:
    """A `tabular` that needs booktabs."""
    header = _header(found)
    left = len(found.settings or ("run",))
    lines = [_cells(found, i, r" $\pm$ ", r"\textbf{{{}}}", DAGGER) for i in range(len(found.lines))]
    body = [" & ".join(_escaped(cell) for cell in row) + r" \\" for row in lines]
    top = [rf"\begin{{tabular}}{{{'l' * left}{'r' * (len(header) - left)}}}", r"\toprule"]
    middle = [" & ".join(_escaped(cell) for cell in header) + r" \\", r"\midrule", *body]
    said = [f"% {note.replace(MARK, 'dagger:')}" for note in notes(found)]
    return "\n".join([*said, *top, *middle, r"\bottomrule", r"\end{tabular}"]) + "\n"


def _has_seeds(found: Comparison) -> bool:
    return any(len(line.runs) > 1 for line in found.lines)


def _header(found: Comparison) -> list[str]:
    seeds = ["seeds"] if _has_seeds(found) else []
    return [*(found.settings or ("run",)), *seeds, *found.metrics, "download", "upload", "time"]


def _cells(found: Comparison, index: int, sign: str, bold: str, mark: str) -> list[str]:
    """A line's cells as text. `sign` stands before a deviation; `bold` is a format, `mark` follows what differs."""
    line = found.lines[index]
    ended = f"{len(line.done)}" if len(line.done) == len(line.runs) else f"{len(line.done)} of {len(line.runs)}"
    cells = [_text(value) for value in line.shown.values()] or [line.runs[0].label]
    cells += [ended] if _has_seeds(found) else []
    for metric in found.metrics:
        cells.append(_score(line.scores.get(metric), index in found.best(metric), sign, bold, mark) or _why(line))
    for way in WAYS:
        count = line.mean_of("bytes", way)
        cells.append("" if count is None else size(count))
    seconds = line.mean_of("seconds", "total")
    return [*cells, "" if seconds is None else duration(seconds)]


def _score(score: Score | None, best: bool, sign: str, bold: str, mark: str) -> str:
    if score is None:
        return ""
    text = f"{score.mean:.4f}" + ("" if score.deviation is None else f"{sign}{score.deviation:.4f}")
    text = bold.format(text) if best else text
    return text + (mark if score.p is not None and score.p < LEVEL else "")


def _why(line: Line) -> str:
    """What stands in place of a score that there is not."""
    return line.runs[0].status if not line.done else ""


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _escaped(cell: str) -> str:
    for sign in "_%&#":
        cell = cell.replace(sign, f"\\{sign}")
    return cell
