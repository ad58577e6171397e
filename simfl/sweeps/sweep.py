"""Execution of a sweep: as many runs at a time as there are workers; finished runs are skipped.

DIR/sweep.json           the runs and their values of everything that varies
    runs/LABEL/          folder of a run, as `simfl run` writes it; with error.txt if the run failed
    results.parquet      one row per run
    table.md .csv .tex   results over the seeds
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from simfl import files
from simfl.reports.formats import csv, latex, markdown
from simfl.reports.results import RunResult, result_rows, results_of
from simfl.reports.table import compare, paired_test
from simfl.reports.table_spec import read_spec, restrict_to_results
from simfl.runs import tables
from simfl.runs.folder import RUN, SWEEP
from simfl.session.callbacks import NullDisplay
from simfl.session.signals import Signals
from simfl.sweeps.file import Sweep
from simfl.sweeps.folder import RunLocation, location_of
from simfl.sweeps.job import Outcome, request_stop
from simfl.sweeps.pool import RunPool, SweepPlacement, open_pool
from simfl.sweeps.status import NullSweepDisplay, SweepState, stop_early

POLL_SECONDS = 0.5  # longest wait for the end of a run
GRACE_SECONDS = 60.0  # time that running rounds have to end after Ctrl-C
RESULTS, FORMATS = "results.parquet", {"table.md": markdown, "table.csv": csv, "table.tex": latex}


def run(
    sweep: Sweep,
    out: Path | str,
    placement: SweepPlacement | None = None,
    resume: bool = False,
    display: NullSweepDisplay | None = None,
) -> list[Outcome]:
    """Execute all runs of a sweep that have not finished, and return the outcomes in the order of the sweep.

    `out` is a folder that all machines can access, or a URL that fsspec supports. A failed run does not affect others.

    Raises:
        RunError: `out` holds another sweep or a run of another experiment.
    """
    shown, signals = display or NullSweepDisplay(), Signals()
    with location_of(out, exclusive=not sweep.partial) as location, _alone(sweep, location), signals.caught():
        state = SweepState.open(sweep, location, resume)
        if state.left:
            listener = lambda job: _RunListener(state, shown)
            placement = placement or SweepPlacement()
            with open_pool(placement, listener, shown.message, sweep.experiments) as pool, signals.caught():
                state.write_points()
                _execute(state, pool, shown)
        state.write_points(ended=True)
        write_results(location, state.results)
        shown.finished(state)
    return [state.outcomes.get(p.label, Outcome(p.label, "interrupted")) for p in state.points]


@contextmanager
def _alone(sweep: Sweep, location: RunLocation) -> Iterator[None]:
    """Refuse a second process on the folder of a search: two would propose the same trials. At a URL, a lease does.

    Raises:
        RunError: Another process is using the folder.
    """
    if sweep.search is None or location.url:
        yield
        return
    files.make_folder(location.folder)
    try:
        with files.locked(location.folder):
            yield
    finally:
        if not (location.folder / SWEEP).exists():  # refused before it began
            (location.folder / ".lock").unlink(missing_ok=True)
            with suppress(OSError):
                location.folder.rmdir()


def begin(sweep: Sweep, folder: Path, resume: bool = False) -> None:
    """Write the list of runs, for processes that each execute some of them with `--only` and `--resume`.

    Raises:
        RunError: The folder holds another sweep or a run, or without `resume` a sweep.
    """
    SweepState.open(sweep, RunLocation(folder), resume).write_points()


def folder_of(name: str, resume: bool) -> Path:
    """Return the first free folder `runs/NAME`, `runs/NAME-2`, …; to resume, the newest one that holds a sweep."""
    number, found = 1, list[Path]()
    while True:
        path = Path("runs") / (name if number == 1 else f"{name}-{number}")
        if (path / SWEEP).exists():
            found.append(path)
        elif not (path / RUN).exists():
            return found[-1] if resume and found else path
        number += 1


def _execute(state: SweepState, pool: RunPool, display: NullSweepDisplay) -> None:
    try:
        while state.left or state.running:
            pool.expect(state.left)
            _start_waiting(state, pool)
            if _collect(state, pool, display):
                return  # this process was interrupted during an inline run
            stop_early(state)
        if state.study is not None and state.study.exhausted:
            display.message(f"the space has no more settings that were not tried: {len(state.points)} trials")
    except KeyboardInterrupt:  # raised by `Signals`, or by Ray if the signal arrives while it waits
        _interrupt(state, pool, display)


def _start_waiting(state: SweepState, pool: RunPool) -> None:
    """Start as many runs as there are free workers."""
    while pool.free and (job := state.next()) is not None:
        pool.start(job)


def _collect(state: SweepState, pool: RunPool, display: NullSweepDisplay, more: bool = True) -> bool:
    """Record the runs that have ended; return whether one was interrupted.

    With `more`, their workers get the next runs before anything is read or shown.
    """
    outcomes = pool.ended(POLL_SECONDS)
    for outcome in outcomes:
        state.end(outcome)
    interrupted = any(outcome.status == "interrupted" for outcome in outcomes)
    if more and pool.starts_at_once and not interrupted:
        _start_waiting(state, pool)
    state.read_logs()
    for outcome in outcomes:
        state.read_result(outcome)
        display.ended(state, outcome)
    display.show(state)
    return interrupted


def _interrupt(state: SweepState, pool: RunPool, display: NullSweepDisplay) -> None:
    """Wait for running rounds to end; longer ones are repeated from the last checkpoint when the sweep is resumed."""
    display.message(f"interrupted; waiting up to {GRACE_SECONDS:g} s for running rounds to end")
    for job in state.running.values():
        if job.location.url or job.location.folder.exists():
            request_stop(job.location, "interrupted")
    deadline = time.monotonic() + GRACE_SECONDS
    while state.running and time.monotonic() < deadline:
        _collect(state, pool, display, more=False)


class _RunListener(NullDisplay):
    """Display of an inline run that updates the display of the sweep; the sweep reads everything from the log."""

    def __init__(self, state: SweepState, display: NullSweepDisplay) -> None:
        self.state, self.display = state, display

    def _update(self) -> None:
        self.state.read_logs()
        stop_early(self.state)
        self.display.show(self.state)

    def started(self, plan: dict[str, Any]) -> None:
        """Update when the run starts or resumes."""
        self._update()

    def round_done(self, row: dict[str, Any]) -> None:
        """Update after a round."""
        self._update()


def write_results(location: RunLocation, known: Mapping[Path, RunResult] | None = None) -> None:
    """Write `results.parquet` and the tables for the current state of the runs; `known` results are not read again.

    Raises:
        ConfigError: The file of the sweep asks for a metric that no run has; the results are written before.
    """
    found, runs = results_of([location.folder], known), location.child("runs")
    tables.write(location.folder / RESULTS, [{**row, "folder": f"{runs}/{row['label']}"} for row in result_rows(found)])
    location.send(RESULTS)
    spec = restrict_to_results(read_spec([location.folder]), found)
    comparison = compare(found, spec.metrics, spec.against, paired_test)
    for name, form in FORMATS.items():
        text = form(comparison)
        files.write(location.folder / name, lambda file, text=text: file.write(text.encode()))  # type: ignore[misc]
        location.send(name)
