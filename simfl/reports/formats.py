"""A comparison as Markdown, CSV or LaTeX, and text files with a table between two markers.

A command replaces what is between the markers, and keeps the markers:

    <!-- simfl: NAME -->
    …
    <!-- simfl: end -->
"""

from __future__ import annotations

import csv as csv_files
import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from simfl import files
from simfl.errors import ConfigError, nearest
from simfl.formatting import format_bytes, format_duration
from simfl.reports.statistical_tests import SIGNIFICANCE_LEVEL, student_quantile
from simfl.reports.table import Comparison, ComparisonRow, SeedScores
from simfl.safe_text import printable

DIRECTIONS = ("download", "upload")
END = "<!-- simfl: end -->"


HTML_START = re.compile(r"<(?=[A-Za-z/!?])")
FORMULA_STARTS = ("=", "+", "-", "@", "\t")  # of a cell that a spreadsheet takes for a formula
LATEX_SIGNS = {sign: f"\\{sign}" for sign in "_%&#${}"} | {
    "\\": r"\textbackslash{}",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "[": "{[}",  # after the end of a row it would begin an argument
}


def _one_line(text: str) -> str:
    """Return text that others may have written as one line without control characters."""
    return printable(" ".join(text.splitlines()))


def _escape_markdown(cell: str) -> str:
    """Return text that cannot end a cell, and holds no HTML and no link."""
    cell = _one_line(cell).replace("\\", "\\\\").replace("|", "\\|")
    return HTML_START.sub("&lt;", cell).replace("](", "]\\(")


def _escape_csv(cell: object) -> object:
    """Return a cell that a spreadsheet shows as text and does not run as a formula; numbers stay."""
    if not isinstance(cell, str):
        return cell
    text = printable(cell)
    return f"'{text}" if text.startswith(FORMULA_STARTS) else text


def _escape_latex(cell: str) -> str:
    """Return text without commands."""
    return "".join(LATEX_SIGNS.get(sign, sign) for sign in _one_line(cell))


@dataclass(frozen=True)
class CellStyle:
    """Markup of a cell of scores."""

    sign: str  # before a deviation
    bold: str  # format of the best
    mark: str  # after a score that differs significantly from the reference
    escape: Callable[[str], str]  # of text that others may have written


MARKDOWN = CellStyle(" ± ", "**{}**", "†", _escape_markdown)
LATEX = CellStyle(r" $\pm$ ", r"\textbf{{{}}}", r"$^\dagger$", _escape_latex)


def notes(comparison: Comparison) -> list[str]:
    """Return the notes that a table needs: meaning of ± and †, errors of failed runs."""
    lines = []
    if _has_seeds(comparison):
        lines.append("mean ± standard deviation over the seeds")
    lines += _test_notes(comparison)
    failed = [run for row in comparison.rows for run in row.runs if run.status == "failed"]
    return lines + [f"{run.label} failed: {run.error}" for run in failed]


def _test_notes(comparison: Comparison) -> list[str]:
    """Return the meaning of † and what its absence does not say."""
    if not comparison.reference:
        return []
    tests, mark = comparison.tests, MARKDOWN.mark
    if not tests:
        return [f"no row is tested against {comparison.reference}: a test needs two seeds with common examples"]
    same = " with otherwise equal settings" if len(comparison.settings) > 1 else ""
    seeds = min(test.seeds for test in tests)
    error = student_quantile(SIGNIFICANCE_LEVEL / len(tests), seeds - 1)
    number = "1 comparison" if len(tests) == 1 else f"{len(tests)} comparisons"
    return [
        f"{mark} differs from {comparison.reference}{same}: hierarchical bootstrap over seeds and examples, paired by"
        f" seed, p < {SIGNIFICANCE_LEVEL} after Holm's correction for {number}",
        f"with {seeds} seeds and {number}, the first {mark} needs a difference of {error:.1f} standard errors; without"
        f" {mark}, this table cannot tell a difference from the chance of seeds and examples",
    ]


def markdown(comparison: Comparison) -> str:
    """Format a comparison as a Markdown table, the best scores in bold, with notes below it."""
    header = [_escape_markdown(name) for name in _header(comparison)]
    left = len(comparison.settings or ("run",))
    rule = ["---" if i < left else "---:" for i in range(len(header))]
    lines = [_cells(comparison, i, MARKDOWN) for i in range(len(comparison.rows))]
    rows = ["| " + " | ".join(row) + " |" for row in [header, rule, *lines]]
    items = [f"- {_escape_markdown(note)}" for note in notes(comparison)]
    return "\n".join([*rows, *([""] if items else []), *items]) + "\n"


def csv(comparison: Comparison) -> str:
    """Format a comparison as CSV with plain numbers: mean, deviation and p in separate columns, bytes, seconds."""
    out = io.StringIO()
    writer = csv_files.writer(out, lineterminator="\n")
    parts = [f"{metric}{end}" for metric in comparison.metrics for end in ("", "_deviation", "_p")]
    byte_columns = [f"{direction}_bytes" for direction in DIRECTIONS]
    header = [*(comparison.settings or ("run",)), "seeds", *parts, *byte_columns, "seconds"]
    writer.writerow(map(_escape_csv, header))
    for row in comparison.rows:
        cells: list[object] = [*row.varied.values()] or [row.runs[0].label]
        cells.append(len(row.done))
        for metric in comparison.metrics:
            score = row.scores.get(metric)
            cells += [score.mean, score.deviation, score.p] if score is not None else [None] * 3
        cells += [row.mean_of("bytes", direction) for direction in DIRECTIONS]
        writer.writerow(map(_escape_csv, [*cells, row.mean_of("seconds", "total")]))
    return out.getvalue()


def latex(comparison: Comparison) -> str:
    """Format a comparison as a LaTeX `tabular`, which needs the package booktabs."""
    header = _header(comparison)
    left = len(comparison.settings or ("run",))
    rows = [_cells(comparison, i, LATEX) for i in range(len(comparison.rows))]
    body = [" & ".join(row) + r" \\" for row in rows]
    top = [rf"\begin{{tabular}}{{{'l' * left}{'r' * (len(header) - left)}}}", r"\toprule"]
    middle = [" & ".join(_escape_latex(cell) for cell in header) + r" \\", r"\midrule", *body]
    comments = [f"% {_one_line(note).replace(MARKDOWN.mark, 'dagger:')}" for note in notes(comparison)]
    return "\n".join([*comments, *top, *middle, r"\bottomrule", r"\end{tabular}"]) + "\n"


def write_between(path: Path, name: str, text: str) -> None:
    """Replace the text between the markers of this name. ConfigError if the file has none."""
    before, after = around(path, name)
    whole = f"{before}\n{text.strip()}\n{after}"
    files.write(path, lambda file: file.write(whole.encode()))


def around(path: Path, name: str) -> tuple[str, str]:
    """Return the text up to the first marker of this name, and from its end marker on. ConfigError without markers."""
    try:
        whole = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    start = f"<!-- simfl: {name} -->"
    names = [found for found in re.findall(r"<!-- simfl: (.+?) -->", whole) if found != "end"]
    first = whole.find(start)
    if first < 0:
        hint = nearest(name, names) if names else f"write {start} and {END} where the table belongs"
        raise ConfigError(f"{path}: no marker {start}; {hint}")
    last = whole.find(END, first)
    if last < 0:
        raise ConfigError(f"{path}: no {END} after {start}")
    return whole[: first + len(start)], whole[last:]


def format_score(score: SeedScores, best: bool, style: CellStyle) -> str:
    """Format the mean and deviation of a score."""
    text = f"{score.mean:.4f}" + ("" if score.deviation is None else f"{style.sign}{score.deviation:.4f}")
    text = style.bold.format(text) if best else text
    return text + (style.mark if score.p is not None and score.p < SIGNIFICANCE_LEVEL else "")


def _has_seeds(comparison: Comparison) -> bool:
    return any(len(row.runs) > 1 for row in comparison.rows)


def _header(comparison: Comparison) -> list[str]:
    seeds = ["seeds"] if _has_seeds(comparison) else []
    return [*(comparison.settings or ("run",)), *seeds, *comparison.metrics, "download", "upload", "time"]


def _cells(comparison: Comparison, index: int, style: CellStyle) -> list[str]:
    """Return the cells of a row as text."""
    row = comparison.rows[index]
    ended = f"{len(row.done)}" if len(row.done) == len(row.runs) else f"{len(row.done)} of {len(row.runs)}"
    names = ["" if value is None else str(value) for value in row.varied.values()] or [row.runs[0].label]
    cells = [style.escape(name) for name in names]
    cells += [ended] if _has_seeds(comparison) else []
    for metric in comparison.metrics:
        score = row.scores.get(metric)
        best = index in comparison.best(metric)
        cells.append(style.escape(_status_of(row)) if score is None else format_score(score, best, style))
    for direction in DIRECTIONS:
        count = row.mean_of("bytes", direction)
        cells.append("" if count is None else format_bytes(count))
    seconds = row.mean_of("seconds", "total")
    return [*cells, "" if seconds is None else format_duration(seconds)]


def _status_of(row: ComparisonRow) -> str:
    """Return what a cell shows in place of a missing score."""
    return row.runs[0].status if not row.done else ""
