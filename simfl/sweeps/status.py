"""State of the runs of a sweep, its display, and early stopping.

Median stopping: Golovin et al. 2017, "Google Vizier: a service for black-box optimization", section 3.2.2.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from statistics import mean, median

from simfl import config, files
from simfl.errors import RunError
from simfl.json_files import JsonLines
from simfl.reports.shared_prefixes import longest_prefixes
from simfl.runs.folder import LOG, RUN, SWEEP, read_json, write_json
from simfl.runs.manifest import refuse_another
from simfl.runs.summary import ENDED, read_summary
from simfl.sweeps.file import MedianStopping, Sweep
from simfl.sweeps.folder import RunLocation
from simfl.sweeps.job import Outcome, SweepJob, request_stop
from simfl.tracking.watch import RunView

FETCH_SECONDS = 5.0  # between two downloads of a log from a URL


@dataclass
class SweepState:
    """The waiting, running and ended runs of a sweep."""

    sweep: Sweep
    location: RunLocation
    waiting: list[SweepJob] = field(default_factory=list)
    running: dict[str, SweepJob] = field(default_factory=dict)
    outcomes: dict[str, Outcome] = field(default_factory=dict)  # of all ended runs
    before: set[str] = field(default_factory=set)  # runs that had ended before this session
    views: dict[str, RunView] = field(default_factory=dict)  # contents of the logs
    logs: dict[str, JsonLines] = field(default_factory=dict)
    _next_fetch: float = 0.0

    @staticmethod
    def open(sweep: Sweep, location: RunLocation, resume: bool) -> SweepState:
        """Find out which runs have ended and which remain.

        Raises:
            RunError: The location holds a run or, without `resume`, a sweep; or a run in it belongs to another
                experiment.
        """
        if (location.folder / RUN).exists():
            raise RunError(f"{location}: holds a run; give another --out")
        exists = (location.folder / SWEEP).exists()
        if exists and not resume:
            raise RunError(f"{location}: holds a sweep; resume it with --resume, or give another --out")
        state, prefixes = SweepState(sweep, location), longest_prefixes({p.label: p.experiment for p in sweep.points})
        for point in sweep.points:
            own = state.location_of(point.label)
            if (own.folder / RUN).exists():
                refuse_another(own.folder, config.dump(point.experiment))
            status = (read_summary(own.folder) or {}).get("status", "")
            if status in ENDED:
                state.outcomes[point.label] = Outcome(point.label, status)
                state.before.add(point.label)
                if sweep.stop.median is not None:
                    state.read_log(point.label)
            else:
                prefix = state.location_of(prefixes[point.label]) if point.label in prefixes else None
                state.waiting.append(SweepJob(point.label, point.experiment, own, prefix))
        return state

    def location_of(self, label: str) -> RunLocation:
        """Return the location of a run."""
        return self.location.child("runs", label)

    def write_points(self) -> None:
        """Write the list of runs; runs of an earlier version of the file remain if they have a folder.

        The part of a sweep that `--only` selects leaves the others on the list: other processes may execute them.
        """
        runs = {point.label: dict(point.varied) for point in self.sweep.points}
        path = self.location.folder / SWEEP
        listed_before = read_json(path)["runs"] if path.exists() else []
        if self.sweep.partial:
            runs = {run["label"]: run["varied"] for run in listed_before} | runs
        for run in listed_before:
            if (self.location_of(run["label"]).folder / RUN).exists():
                runs.setdefault(run["label"], run["varied"])
        listed = [{"label": label, "varied": varied} for label, varied in runs.items()]
        content = {"name": self.sweep.name, "runs": listed, "table": asdict(self.sweep.table)}
        files.make_folder(self.location.folder / "runs")
        write_json(path, content)
        self.location.send(SWEEP)

    def next(self) -> SweepJob | None:
        """Return the next run to start; a run with a prefix waits until the prefix has ended."""
        unfinished = {job.label for job in self.waiting} | self.running.keys()
        for i, job in enumerate(self.waiting):
            if job.prefix is None or job.prefix.folder.name not in unfinished:
                self.running[job.label] = self.waiting.pop(i)
                return job
        return None

    def read_logs(self) -> None:
        """Read the new lines in the logs of all running runs."""
        fetch = bool(self.location.url) and time.monotonic() >= self._next_fetch
        for label in self.running:
            if fetch:
                self.location_of(label).fetch(LOG)
            self.read_log(label)
        if fetch:
            self._next_fetch = time.monotonic() + FETCH_SECONDS

    def read_log(self, label: str) -> None:
        """Read the new lines in the log of one run."""
        log = self.logs.setdefault(label, JsonLines(self.location_of(label).folder / LOG))
        for line in log.lines():
            self.views.setdefault(label, RunView()).update(line)

    def end(self, outcome: Outcome) -> None:
        """Record the outcome of a run."""
        self.location_of(outcome.label).fetch_all()
        self.read_log(outcome.label)
        self.running.pop(outcome.label, None)
        self.outcomes[outcome.label] = outcome

    def scores(self, label: str) -> dict[int, float]:
        """Return the headline scores of a run by round: those of its first split and first model."""
        found = self.views[label].scores if label in self.views else {}
        return next(iter(found.values()), {})


class NullSweepDisplay:
    """Display of a sweep that shows nothing; displays override its methods."""

    def show(self, state: SweepState) -> None:
        """Show the state; called about twice a second."""

    def ended(self, state: SweepState, outcome: Outcome) -> None:
        """Show the outcome of a run."""

    def message(self, text: str) -> None:
        """Show a message."""

    def finished(self, state: SweepState) -> None:
        """Show the results, which have been written."""


def stop_early(state: SweepState) -> None:
    """Ask running runs to end whose scores are behind those of the others."""
    rule = state.sweep.stop.median
    if rule is None:
        return
    for label, job in list(state.running.items()):
        others = [state.scores(p.label) for p in state.sweep.points if p.label != label]
        if is_behind(state.scores(label), others, rule):
            request_stop(job.location, "stopped")


def is_behind(own: dict[int, float], others: Iterable[dict[int, float]], rule: MedianStopping) -> bool:
    """Return whether a run's best score so far is below the median of the others' mean scores up to the same round.

    Scores are given by round. Only runs that have reached this round are compared, and `rule.least` of them are needed.
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
