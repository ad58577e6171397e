"""What a person sees of a sweep: a live table in a terminal, elsewhere a line for each run that ends."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from simfl.runs.results import summary_of
from simfl.tracking.progress import duration, size
from simfl.tracking.watch import View, sparkline

if TYPE_CHECKING:
    from simfl.sweeps.job import Outcome
    from simfl.sweeps.status import Standing

STYLES = {"completed": "green", "stopped": "yellow", "failed": "bold red", "interrupted": "yellow", "waiting": "dim"}
SPARE = 6  # lines of the terminal that are not the table's


class Board:
    """Shows how the runs stand; used in a `with` block, it gives the terminal back however the sweep ends."""

    def __init__(self, console: Console | None = None) -> None:
        self.console, self.said = console or Console(stderr=True), False
        self.place, self.table = "", ""  # of the results, when they are written
        self.live = Live(console=self.console, auto_refresh=False)

    def __enter__(self) -> Board:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.live.is_started:
            self.live.stop()

    def message(self, text: str) -> None:
        """One line, as it is."""
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def show(self, standing: Standing) -> None:
        """The table as it is now, in a terminal."""
        self._announce(standing)
        if self.console.is_terminal:
            if not self.live.is_started:
                self.live.start()
            self.live.update(picture(standing, self.console.size.height - SPARE), refresh=True)

    def ended(self, standing: Standing, outcome: Outcome) -> None:
        """A line for a run that has ended; in a terminal, only of one that failed."""
        self._announce(standing)
        if self.console.is_terminal and outcome.status != "failed":
            return
        done = len(standing.outcomes)
        self.message(f"[{done}/{len(standing.sweep.points)}] {outcome.label}: {_told(standing, outcome)}")

    def finished(self, standing: Standing) -> None:
        """Keep the results, for whoever prints them."""
        self.place, self.table = str(standing.place), (standing.place.folder / "table.md").read_text()

    def _announce(self, standing: Standing) -> None:
        if not self.said:
            self.said = True
            done = f", {len(standing.before)} of them done already" if standing.before else ""
            self.message(f"{standing.sweep.name}: {len(standing.sweep.points)} runs{done}, in {standing.place}")


def _told(standing: Standing, outcome: Outcome) -> str:
    if outcome.error:
        return f"failed: {outcome.error}"
    view = standing.views.get(outcome.label, View())
    parts = [outcome.status, *(f"{name} {_last(v):.4f}" for name, v in view.scores.items())]
    summary = summary_of(standing.place_of(outcome.label).folder)
    if summary is not None:
        parts += [size(summary["bytes"]["total"]), duration(summary["seconds"]["total"])]
    return ", ".join(parts)


def _last(values: dict[int, float]) -> float:
    return values[max(values)]


def _bytes(view: View) -> str:
    return size(view.status.download + view.status.upload)


def picture(standing: Standing, height: int) -> RenderableType:
    """The runs under mode, those that failed, then as many of the others as there is room for."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("run", "state", "round", "score", "", "loss", "bytes", "time"):
        table.add_column(name, no_wrap=True, justify="right" if name in ("round", "loss", "bytes", "time") else "left")
    labels = [point.label for point in standing.sweep.points]
    rank = {label: _rank(standing, label) for label in labels}
    shown = sorted(sorted(labels, key=lambda label: rank[label])[: max(height, 3)], key=labels.index)
    for label in shown:
        table.add_row(*_row(standing, label))
    counts = ", ".join(f"{count} {state}" for state, count in _counts(standing).items() if count)
    hidden = f"; {len(labels) - len(shown)} not shown" if len(shown) < len(labels) else ""
    return Group(table, Text(f"{len(labels)} runs: {counts}{hidden}", style="bold"))


def _state(standing: Standing, label: str) -> str:
    if label in standing.running:
        return "running"
    return standing.outcomes[label].status if label in standing.outcomes else "waiting"


def _rank(standing: Standing, label: str) -> int:
    return ("running", "failed", "completed", "stopped", "interrupted", "waiting").index(_state(standing, label))


def _counts(standing: Standing) -> dict[str, int]:
    states = [_state(standing, point.label) for point in standing.sweep.points]
    return {state: states.count(state) for state in ("running", *STYLES)}


def _row(standing: Standing, label: str) -> list[RenderableType]:
    state, view = _state(standing, label), standing.views.get(label, View())
    status, name = view.status, next(iter(view.scores), "")
    score = f"{name} {_last(view.scores[name]):.4f}" if name else ""
    error = standing.outcomes[label].error if label in standing.outcomes else ""
    rounds = f"{status.done}/{status.rounds}" if status.rounds else ""
    seconds = duration((time.time() if state == "running" else view.last) - status.began) if view.plan else ""
    return [
        label,
        Text(state, style=STYLES.get(state, "")),
        rounds,
        error or score,
        sparkline(list(view.scores[name].values()), 16) if name else "",
        "" if status.loss is None else f"{status.loss:.4f}",
        _bytes(view) if view.plan else "",
        seconds,
    ]
