"""Runs of a sweep, as many at a time as there are seats: each as it would be alone, and none that is done already.

DIR/sweep.json           the runs and what each has of everything that varies
    runs/LABEL/          a run's folder, as `simfl run` leaves it; error.txt in it if it failed
    results.parquet      one row a run
    table.md .csv .tex   over the seeds
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from simfl import files
from simfl.reports.formats import csv, latex, markdown
from simfl.reports.results import POINTS, results_of, rows
from simfl.reports.table import compare, paired
from simfl.reports.table_spec import met, wanted
from simfl.runs import tables
from simfl.session.signals import Signals
from simfl.sweeps.early_stopping import judge
from simfl.sweeps.file import Sweep
from simfl.sweeps.folder import Place, settled
from simfl.sweeps.job import Job, Outcome, ask
from simfl.sweeps.pool import Seats, open_seats
from simfl.sweeps.status import Standing

TICK = 0.5  # seconds between two looks
GRACE = 60.0  # seconds that rounds under way have to end after Ctrl-C
RESULTS, FORMS = "results.parquet", {"table.md": markdown, "table.csv": csv, "table.tex": latex}


class Unseen:
    """The display of a sweep that shows nothing."""

    def show(self, standing: Standing) -> None:
        """How the runs stand now; called twice a second."""

    def ended(self, standing: Standing, outcome: Outcome) -> None:
        """A run has ended."""

    def message(self, text: str) -> None:
        """Something to be said once."""

    def finished(self, standing: Standing) -> None:
        """The results are written."""


def run(
    sweep: Sweep,
    out: Path | str,
    backend: str = "ray",
    workers: int | str = "auto",
    address: str | None = None,
    resume: bool = False,
    display: Any = None,
) -> list[Outcome]:
    """Do all runs of a sweep that are not done; their outcomes in the order of the sweep.

    `out` is a folder that all machines see, or a URL that fsspec knows. A run that fails is listed and leaves the
    others alone. RunError where another sweep lies or, with `resume`, none; and where a run is of another experiment.
    """
    display, signals = display or Unseen(), Signals()
    with settled(out) as place, signals.caught():
        standing = Standing.open(sweep, place, resume)
        if standing.waiting:
            here = lambda job: _Ear(standing, job, display)
            with open_seats(backend, workers, address, here, display.message) as seats, signals.caught():
                standing.write_points()
                _work(standing, seats, display)
        else:
            standing.write_points()
        write_results(place)
        display.finished(standing)
    return [standing.outcomes.get(p.label, Outcome(p.label, "interrupted")) for p in sweep.points]


def folder_of(name: str, resume: bool) -> Path:
    """A folder under runs/ that holds nothing yet; to resume, the newest sweep of this name."""
    number, found = 1, list[Path]()
    while True:
        path = Path("runs") / (name if number == 1 else f"{name}-{number}")
        if (path / POINTS).exists():
            found.append(path)
        elif not (path / "experiment.yaml").exists():
            return found[-1] if resume and found else path
        number += 1


def _work(standing: Standing, seats: Seats, display: Any) -> None:
    try:
        while standing.waiting or standing.running:
            while seats.free and (job := standing.next()) is not None:
                seats.start(job)
            if _collect(standing, seats, display):
                return  # this process was asked to end while it did a run itself
            judge(standing)
    except KeyboardInterrupt:  # Interrupted, or what Ray makes of it when the signal finds it waiting
        _wind_up(standing, seats, display)


def _collect(standing: Standing, seats: Seats, display: Any) -> bool:
    """Note the runs that have ended; whether one was interrupted."""
    outcomes = seats.ended(TICK)
    standing.look()
    for outcome in outcomes:
        standing.end(outcome)
        display.ended(standing, outcome)
    display.show(standing)
    return any(outcome.status == "interrupted" for outcome in outcomes)


def _wind_up(standing: Standing, seats: Seats, display: Any) -> None:
    """Let rounds under way end; runs that take longer go on from their last commit when the sweep is resumed."""
    display.message(f"interrupted; rounds under way have {GRACE:g} s to end")
    for job in standing.running.values():
        if job.place.url or job.place.folder.exists():
            ask(job.place, "interrupted")
    until = time.monotonic() + GRACE
    while standing.running and time.monotonic() < until:
        _collect(standing, seats, display)


class _Ear:
    """Told by a run in this process how it goes, in place of a display: the sweep reads its log at once."""

    def __init__(self, standing: Standing, job: Job, display: Any) -> None:
        self.standing, self.job, self.display = standing, job, display

    def _look(self) -> None:
        self.standing.look()
        judge(self.standing)
        self.display.show(self.standing)

    def started(self, plan: dict[str, Any]) -> None:
        """The run begins or goes on."""
        self._look()

    def round_done(self, row: dict[str, Any]) -> None:
        """A row of `rounds.parquet`, with seconds."""
        self._look()

    def evaluated(self, row: dict[str, Any]) -> None:
        """A headline score; the log tells of it."""

    def message(self, text: str) -> None:
        """The log tells of it."""

    def finished(self, summary: dict[str, Any]) -> None:
        """The outcome tells of it."""


def write_results(place: Place) -> None:
    """`results.parquet` and the tables of a sweep, as its runs stand now.

    ConfigError where its file wants a score of them that none has; the results are written by then.
    """
    found, runs = results_of([place.folder]), place.below("runs")
    tables.write(place.folder / RESULTS, [{**row, "folder": f"{runs}/{row['label']}"} for row in rows(found)])
    place.send(RESULTS)
    table = met(wanted([place.folder]), found)
    side_by_side = compare(found, table.metrics, table.against, paired)
    for name, form in FORMS.items():
        text = form(side_by_side)
        files.write(place.folder / name, lambda file, text=text: file.write(text.encode()))  # type: ignore[misc]
        place.send(name)
