"""Display of a sweep: a live table in a terminal, elsewhere one line per ended run."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from simfl.formatting import format_bytes, format_duration
from simfl.runs.summary import read_summary
from simfl.sweeps.job import Outcome
from simfl.sweeps.status import NullSweepDisplay, SweepState
from simfl.tracking.console import SafeConsole
from simfl.tracking.watch import RunView, sparkline

STYLES = {"completed": "green", "stopped": "yellow", "failed": "bold red", "interrupted": "yellow", "waiting": "dim"}
RESERVED_LINES = 6  # lines of the terminal outside the table


class Board(NullSweepDisplay):
    """Live display; as a context manager it restores the terminal when the sweep ends."""

    def __init__(self, console: Console | None = None) -> None:
        self.console, self.announced = console or SafeConsole(stderr=True), False
        self.folder, self.table = "", ""  # of the results, once they are written
        self.live = Live(console=self.console, auto_refresh=False)

    def __enter__(self) -> Board:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.live.is_started:
            self.live.stop()

    def message(self, text: str) -> None:
        """Print one line without formatting."""
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def show(self, state: SweepState) -> None:
        """Update the table, in a terminal."""
        self._announce(state)
        if self.console.is_terminal:
            if not self.live.is_started:
                self.live.start()
            self.live.update(board_table(state, self.console.size.height - RESERVED_LINES), refresh=True)

    def ended(self, state: SweepState, outcome: Outcome) -> None:
        """Print a line for an ended run; in a terminal, only for a failed one."""
        self._announce(state)
        if self.console.is_terminal and outcome.status != "failed":
            return
        done = len(state.outcomes)
        self.message(f"[{done}/{len(state.sweep.points)}] {outcome.label}: {_summary(state, outcome)}")

    def finished(self, state: SweepState) -> None:
        """Store the folder and the table of the results for the caller."""
        self.folder, self.table = str(state.location), (state.location.folder / "table.md").read_text()

    def _announce(self, state: SweepState) -> None:
        if not self.announced:
            self.announced = True
            done = f", {len(state.before)} of them finished before" if state.before else ""
            self.message(f"{state.sweep.name}: {len(state.sweep.points)} runs{done}, results in {state.location}")


def _summary(state: SweepState, outcome: Outcome) -> str:
    if outcome.error:
        return f"failed: {outcome.error}"
    view = state.views.get(outcome.label, RunView())
    parts = [outcome.status, *(f"{name} {_last(v):.4f}" for name, v in view.scores.items())]
    summary = read_summary(state.location_of(outcome.label).folder)
    if summary is not None:
        parts += [format_bytes(summary["bytes"]["total"]), format_duration(summary["seconds"]["total"])]
    return ", ".join(parts)


def _last(values: dict[int, float]) -> float:
    return values[max(values)]


def _bytes(view: RunView) -> str:
    return format_bytes(view.status.download + view.status.upload)


def board_table(state: SweepState, height: int) -> RenderableType:
    """Return the table: running runs, failed runs, then as many others as fit."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("run", "status", "round", "score", "", "loss", "bytes", "time"):
        table.add_column(name, no_wrap=True, justify="right" if name in ("round", "loss", "bytes", "time") else "left")
    labels = [point.label for point in state.sweep.points]
    rank = {label: _rank(state, label) for label in labels}
    shown = sorted(sorted(labels, key=lambda label: rank[label])[: max(height, 3)], key=labels.index)
    for label in shown:
        table.add_row(*_row(state, label))
    counts = ", ".join(f"{count} {status}" for status, count in _counts(state).items() if count)
    hidden = f"; {len(labels) - len(shown)} not shown" if len(shown) < len(labels) else ""
    return Group(table, Text(f"{len(labels)} runs: {counts}{hidden}", style="bold"))


def _status(state: SweepState, label: str) -> str:
    if label in state.running:
        return "running"
    return state.outcomes[label].status if label in state.outcomes else "waiting"


def _rank(state: SweepState, label: str) -> int:
    return ("running", "failed", "completed", "stopped", "interrupted", "waiting").index(_status(state, label))


def _counts(state: SweepState) -> dict[str, int]:
    statuses = [_status(state, point.label) for point in state.sweep.points]
    return {status: statuses.count(status) for status in ("running", *STYLES)}


def _row(state: SweepState, label: str) -> list[RenderableType]:
    status, view = _status(state, label), state.views.get(label, RunView())
    progress, name = view.status, next(iter(view.scores), "")
    score = f"{name} {_last(view.scores[name]):.4f}" if name else ""
    error = state.outcomes[label].error if label in state.outcomes else ""
    rounds = f"{progress.done}/{progress.rounds}" if progress.rounds else ""
    until = time.time() if status == "running" else view.last
    return [
        label,
        Text(status, style=STYLES.get(status, "")),
        rounds,
        error or score,
        sparkline(list(view.scores[name].values()), 16) if name else "",
        "" if progress.loss is None else f"{progress.loss:.4f}",
        _bytes(view) if view.plan else "",
        format_duration(until - progress.began) if view.plan else "",
    ]
