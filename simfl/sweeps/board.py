"""Display of a sweep: a live table in a terminal, elsewhere one line per ended run."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.live import Live

from simfl.config.fields import shown
from simfl.formatting import format_bytes, format_duration
from simfl.runs.summary import read_summary
from simfl.sweeps.job import Outcome
from simfl.sweeps.status import NullSweepDisplay, SweepState
from simfl.tracking.console import SafeConsole
from simfl.tracking.sweep_table import SweepRow, sweep_table
from simfl.tracking.watch import RunView

RESERVED_LINES = 6  # lines of the terminal outside the table


class Board(NullSweepDisplay):
    """Live display; as a context manager it restores the terminal when the sweep ends."""

    def __init__(self, console: Console | None = None) -> None:
        self.console, self.announced = console or SafeConsole(stderr=True), False
        self.folder, self.table = "", ""  # of the results, once they are written
        self.best = ""  # line on the best trial of a search
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
            search = state.study.to_json() if state.study is not None else None
            table = sweep_table(_rows(state), self.console.size.height - RESERVED_LINES, search)
            self.live.update(table, refresh=True)

    def ended(self, state: SweepState, outcome: Outcome) -> None:
        """Print a line for an ended run; in a terminal, only for a failed one."""
        self._announce(state)
        if self.console.is_terminal and outcome.status != "failed":
            return
        done = len(state.outcomes)
        self.message(f"[{done}/{state.size}] {outcome.label}: {_summary(state, outcome)}")

    def finished(self, state: SweepState) -> None:
        """Store the folder and the table of the results for the caller."""
        self.folder, self.table = str(state.location), (state.location.folder / "table.md").read_text()
        self.best = _best(state)

    def _announce(self, state: SweepState) -> None:
        if not self.announced:
            self.announced = True
            done = f", {len(state.before)} of them finished before" if state.before else ""
            self.message(f"{state.sweep.name}: {state.size} runs{done}, results in {state.location}")


def _summary(state: SweepState, outcome: Outcome) -> str:
    if outcome.error:
        return f"failed: {outcome.error}"
    view = _view(state, outcome.label)
    parts = [outcome.status, *(f"{name} {_last(v):.4f}" for name, v in view.scores.items())]
    summary = read_summary(state.location_of(outcome.label).folder)
    if summary is not None:
        parts += [format_bytes(summary["bytes"]["total"]), format_duration(summary["seconds"]["total"])]
    return ", ".join(parts)


def _best(state: SweepState) -> str:
    """Return a line on the best trial of a search, its settings and how to run it alone; empty without one."""
    best = state.study.best if state.study is not None else None
    if state.study is None or best is None:
        return ""
    settings = ", ".join(f"{path}={shown(value)}" for path, value in best.point.settings.items())
    command = f"simfl run {state.location_of(best.point.label)}/experiment.yaml"
    return f"best: {best.point.label}, {state.study.plan.objective.name} {best.value:.4f}, {settings}; {command}"


def _last(values: dict[int, float]) -> float:
    return values[max(values)]


def _rows(state: SweepState) -> list[SweepRow]:
    labels = [point.label for point in state.points]
    return [SweepRow(label, _status(state, label), _view(state, label), _error(state, label)) for label in labels]


def _view(state: SweepState, label: str) -> RunView:
    return state.views.get(label, RunView())


def _error(state: SweepState, label: str) -> str:
    return state.outcomes[label].error if label in state.outcomes else ""


def _status(state: SweepState, label: str) -> str:
    if label in state.running:
        return "running"
    return state.outcomes[label].status if label in state.outcomes else "waiting"
