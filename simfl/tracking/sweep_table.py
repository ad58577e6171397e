"""Table of the runs of a sweep: for the display of `simfl sweep`, and for `simfl watch` from another process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console, Group, JustifyMethod, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from simfl.formatting import format_bytes, format_duration
from simfl.json_files import JsonLines
from simfl.runs.folder import ERROR, LOG, SWEEP, JsonObject, read_json
from simfl.runs.summary import ENDED
from simfl.tracking.console import SafeConsole
from simfl.tracking.watch import POLL_SECONDS, RunView, sparkline

STYLES = {"completed": "green", "stopped": "yellow", "failed": "bold red", "interrupted": "yellow", "waiting": "dim"}
WIDE = 1000  # columns of text that is no terminal, at most
WHOLE, MAX_WHOLE = ("run", "score"), 40  # columns that a narrow terminal does not cut, up to this width
RESERVED_LINES = 6  # lines of the terminal outside the table
RANKS = ("running", "failed", "completed", "stopped", "interrupted", "waiting")


@dataclass(frozen=True)
class SweepRow:
    """The state of one run of a sweep."""

    label: str
    status: str  # one of RANKS
    view: RunView
    error: str = ""  # one line


def sweep_table(rows: Sequence[SweepRow], height: int, search: JsonObject | None = None) -> RenderableType:
    """Return the table: running runs, failed runs, then as many others as fit into `height` lines.

    `search` is the description of a search in `sweep.json`; then the best trial so far is shown too.
    """
    table = Table(box=None, padding=(0, 2, 0, 0))
    first = sorted(range(len(rows)), key=lambda i: RANKS.index(rows[i].status))[: max(height, 3)]
    shown = [_cells(rows[i]) for i in sorted(first)]
    for column, name in enumerate(("run", "status", "round", "score", "", "loss", "bytes", "time")):
        longest = max((len(str(cells[column])) for cells in shown), default=0) if name in WHOLE else 0
        justify: JustifyMethod = "right" if name in ("round", "loss", "bytes", "time") else "left"
        table.add_column(name, no_wrap=True, justify=justify, min_width=min(longest, MAX_WHOLE))
    for cells in shown:
        table.add_row(*cells)
    statuses = [row.status for row in rows]
    counts = ", ".join(f"{statuses.count(s)} {s}" for s in ("running", *STYLES) if s in statuses)
    hidden = f"; {len(rows) - len(first)} not shown" if len(first) < len(rows) else ""
    left = f" of {search['trials']}" if search else ""
    total = Text(f"{len(rows)}{left} {'trials' if search else 'runs'}: {counts}{hidden}", style="bold")
    return Group(table, total, *([Text(best_so_far(rows, search), style="bold")] if search else []))


def best_so_far(rows: Sequence[SweepRow], search: JsonObject) -> str:
    """Return a line on the best of the completed trials; empty if none has completed, or its score is in no log."""
    done = {row.label: row.view.scores[search["score"]] for row in rows if _is_scored(row, search["score"])}
    if not done:
        return ""
    sign = 1 if search["direction"] == "maximize" else -1
    last = {label: scores[max(scores)] for label, scores in done.items()}
    best = max(last, key=lambda label: sign * last[label])
    return f"best: {best}, {search['score']} {last[best]:.4f}"


def _is_scored(row: SweepRow, score: str) -> bool:
    return row.status == "completed" and bool(row.view.scores.get(score))


def _cells(row: SweepRow) -> list[RenderableType]:
    progress, name = row.view.status, next(iter(row.view.scores), "")
    scores = row.view.scores.get(name, {})
    until = time.time() if row.status == "running" else row.view.last
    return [
        row.label,
        Text(row.status, style=STYLES.get(row.status, "")),
        f"{progress.done}/{progress.rounds}" if progress.rounds else "",
        row.error or (f"{name} {scores[max(scores)]:.4f}" if scores else ""),
        sparkline(list(scores.values()), 16) if scores else "",
        "" if progress.loss is None else f"{progress.loss:.4f}",
        format_bytes(progress.download + progress.upload) if row.view.plan else "",
        format_duration(until - progress.began) if row.view.plan else "",
    ]


@dataclass
class SweepLogs:
    """The runs of a sweep according to their logs, which all machines of the sweep write."""

    folder: Path
    views: dict[str, RunView] = field(default_factory=dict)
    logs: dict[str, JsonLines] = field(default_factory=dict)
    search: JsonObject | None = None  # the description of a search

    def rows(self) -> list[SweepRow]:
        """Read what is new in all logs, and return the current state of each run.

        Raises:
            DamagedFile: A log was altered.
        """
        content = read_json(self.folder / SWEEP)
        self.search = content.get("search")
        return [self._row(run["label"]) for run in content["runs"]]

    def _row(self, label: str) -> SweepRow:
        folder = self.folder / "runs" / label
        log = self.logs.setdefault(label, JsonLines(folder / LOG))
        view = self.views.setdefault(label, RunView())
        for line in log.lines():
            view.update(line)
        if (folder / ERROR).exists():
            return SweepRow(label, "failed", view, (folder / ERROR).read_text(errors="replace").partition("\n")[0])
        status = view.ended if view.ended in RANKS else "running"
        return SweepRow(label, status if view.plan else "waiting", view)


def all_ended(rows: Iterable[SweepRow]) -> bool:
    """Return whether every run has ended, well or with an error."""
    return all(row.status in (*ENDED, "failed") for row in rows)


def watch_sweep(
    folder: Path,
    once: bool,
    console: Console | None = None,
    every: float = POLL_SECONDS,
    refresh: Callable[[], object] = lambda: None,
) -> None:
    """Show all runs of a sweep until each has completed, failed, or was stopped early.

    Args:
        folder: The folder of the sweep.
        once: Show the current state and return; also outside of a terminal.
        console: Where to show it.
        every: Seconds between two reads of the logs.
        refresh: Called before each read but the first, to update the copy of a URL.

    Raises:
        DamagedFile: The list of runs or a log was altered.
    """
    console, logs = console or SafeConsole(), SweepLogs(folder)
    if once or not console.is_terminal:
        rows = logs.rows()
        found = sweep_table(rows, len(rows), logs.search)
        if not console.is_terminal:  # a file or a pipe has no width that would cut names and scores
            console.width = max(
                console.width, console.measure(found, options=console.options.update(width=WIDE)).maximum
            )
        console.print(found)
        return
    with Live(console=console, auto_refresh=False) as live:
        while True:
            rows = logs.rows()
            live.update(sweep_table(rows, console.size.height - RESERVED_LINES, logs.search), refresh=True)
            if all_ended(rows) and len(rows) >= (logs.search or {}).get("trials", 0):
                return
            time.sleep(every)
            refresh()
