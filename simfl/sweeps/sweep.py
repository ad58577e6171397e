"""Runs of a sweep, as many at a time as there are seats: each as it would be alone, and none that is done already.

DIR/sweep.json           the runs and what each has of everything that varies
    runs/LABEL/          a run's folder, as `simfl run` leaves it; error.txt in it if it failed
    results.parquet      one row a run
    table.md .csv .tex   over the seeds
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median
from typing import Any

from simfl import config, files
from simfl.comparison.results import POINTS, results_of, rows
from simfl.comparison.table import compare, csv, latex, markdown, paired
from simfl.engine.signals import Interrupted, Signals
from simfl.errors import RunError
from simfl.following.watch import Log, View
from simfl.runs import tables
from simfl.runs.record import refuse_another
from simfl.runs.results import ENDED, summary_of
from simfl.sweeps.file import Median, Sweep
from simfl.sweeps.fork import beginnings
from simfl.sweeps.job import Job, Outcome, ask
from simfl.sweeps.pool import Seats, open_seats

TICK = 0.5  # seconds between two looks
GRACE = 60.0  # seconds that rounds under way have to end after Ctrl-C


@dataclass
class Standing:
    """How the runs of a sweep stand."""

    sweep: Sweep
    folder: Path
    waiting: list[Job] = field(default_factory=list)
    running: dict[str, Job] = field(default_factory=dict)
    outcomes: dict[str, Outcome] = field(default_factory=dict)  # of the runs that have ended, in this sitting or before
    before: set[str] = field(default_factory=set)  # runs that had ended before this sitting
    views: dict[str, View] = field(default_factory=dict)  # what each run has said of itself
    logs: dict[str, Log] = field(default_factory=dict)

    def next(self) -> Job | None:
        """The next run to begin; one that goes on from another waits for it."""
        open_ = {job.label for job in self.waiting} | self.running.keys()
        for i, job in enumerate(self.waiting):
            if job.after is None or job.after.name not in open_:
                self.running[job.label] = self.waiting.pop(i)
                return job
        return None

    def look(self) -> None:
        """Read on in the logs of the runs under way."""
        for label, job in self.running.items():
            self.hear(label, job.folder)

    def hear(self, label: str, folder: Path) -> None:
        """Read on in the log of one run."""
        log = self.logs.setdefault(label, Log(folder / "log.jsonl"))
        if log.path.exists():
            for line in log.lines():
                self.views.setdefault(label, View()).hear(line)

    def end(self, outcome: Outcome) -> None:
        """Note how a run ended."""
        self.look()
        self.running.pop(outcome.label, None)
        self.outcomes[outcome.label] = outcome

    def scores(self, label: str) -> dict[int, float]:
        """The headline score of a run by round: its first split, its first model."""
        found = self.views[label].scores if label in self.views else {}
        return next(iter(found.values()), {})


class Unseen:
    """The display of a sweep that shows nothing."""

    def show(self, standing: Standing) -> None:
        """How the runs stand now; called twice a second."""

    def ended(self, standing: Standing, outcome: Outcome) -> None:
        """A run has ended."""

    def message(self, text: str) -> None:
        """Something to be said once."""


def run(
    sweep: Sweep,
    out: Path,
    backend: str = "ray",
    workers: int | str = "auto",
    address: str | None = None,
    resume: bool = False,
    display: Any = None,
) -> list[Outcome]:
    """Do all runs of a sweep that are not done; their outcomes in the order of the sweep.

    A run that fails is listed and leaves the others alone. RunError where the folder holds another sweep or, with
    `resume`, none; and where a run in it is of another experiment.
    """
    display, signals = display or Unseen(), Signals()
    standing = _open(sweep, out, resume)
    with signals.caught():
        if standing.waiting:
            here = lambda job: _Ear(standing, job, display)
            with open_seats(backend, workers, address, here, display.message) as seats, signals.caught():
                _work(standing, seats, display)
        write_results(standing.folder)
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


def _open(sweep: Sweep, out: Path, resume: bool) -> Standing:
    """What is done already, and what is to do."""
    stored = out / POINTS
    if stored.exists() and not resume:
        raise RunError(f"{out}: holds a sweep already; go on with --resume, or give another --out")
    if resume and not stored.exists():
        raise RunError(f"{out}: no sweep to resume here")
    standing, shorter = Standing(sweep, out), beginnings({p.label: p.experiment for p in sweep.points})
    for point in sweep.points:
        folder = out / "runs" / point.label
        if (folder / "experiment.yaml").exists():
            refuse_another(folder, config.dump(point.experiment))
        status = (summary_of(folder) or {}).get("status", "")
        if status in ENDED:
            standing.outcomes[point.label] = Outcome(point.label, status)
            standing.before.add(point.label)
            if sweep.stop.median is not None:
                standing.hear(point.label, folder)
        else:
            after = out / "runs" / shorter[point.label] if point.label in shorter else None
            standing.waiting.append(Job(point.label, point.experiment, folder, after))
    files.make_folder(out / "runs")
    _write_points(sweep, out)
    return standing


def _write_points(sweep: Sweep, out: Path) -> None:
    """The runs that a file names now; of an older file, those that have a folder stay."""
    runs = {point.label: dict(point.shown) for point in sweep.points}
    path = out / POINTS
    if path.exists():
        earlier = json.loads(path.read_bytes())["runs"]
        runs |= {r["label"]: r["shown"] for r in earlier if r["label"] not in runs and _exists(out, r["label"])}
    content = {"name": sweep.name, "runs": [{"label": label, "shown": shown} for label, shown in runs.items()]}
    files.write(path, lambda file: file.write(json.dumps(content, indent=1).encode()))


def _exists(out: Path, label: str) -> bool:
    return (out / "runs" / label / "experiment.yaml").exists()


def _work(standing: Standing, seats: Seats, display: Any) -> None:
    try:
        while standing.waiting or standing.running:
            while seats.free and (job := standing.next()) is not None:
                seats.start(job)
            if _collect(standing, seats, display):
                return  # this process was asked to end while it did a run itself
            _judge(standing)
    except Interrupted:
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
        if job.folder.exists():
            ask(job.folder, "interrupted")
    until = time.monotonic() + GRACE
    while standing.running and time.monotonic() < until:
        _collect(standing, seats, display)


def _judge(standing: Standing) -> None:
    """Ask runs to end that have fallen behind the others."""
    if standing.sweep.stop.median is not None:
        for label, job in list(standing.running.items()):
            others = [standing.scores(p.label) for p in standing.sweep.points if p.label != label]
            if behind(standing.scores(label), others, standing.sweep.stop.median):
                ask(job.folder, "stopped")


def behind(own: dict[int, float], others: Iterable[dict[int, float]], rule: Median) -> bool:
    """Whether a run's best score so far is below the median of the others' mean scores up to the same round.

    Scores by round. Golovin et al. 2017 (Vizier), section 3.2.2; all others count that have come as far.
    """
    last = max(own, default=0)
    if last < rule.after:
        return False
    reached = [
        [v for step, v in scores.items() if 0 < step <= last] for scores in others if max(scores, default=0) >= last
    ]
    means = [mean(values) for values in reached if values]
    best = max(v for step, v in own.items() if step > 0)
    return len(means) >= rule.least and best < median(means)


class _Ear:
    """Told by a run in this process how it goes, in place of a display: the sweep reads its log at once."""

    def __init__(self, standing: Standing, job: Job, display: Any) -> None:
        self.standing, self.job, self.display = standing, job, display

    def _look(self) -> None:
        self.standing.look()
        _judge(self.standing)
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


def write_results(folder: Path) -> None:
    """`results.parquet` and the tables of a sweep's folder, as its runs stand now."""
    found = results_of([folder])
    tables.write(folder / "results.parquet", rows(found))
    side_by_side = compare(found, test=paired)
    for name, form in (("table.md", markdown), ("table.csv", csv), ("table.tex", latex)):
        text = form(side_by_side)
        files.write(folder / name, lambda file, text=text: file.write(text.encode()))  # type: ignore[misc]
