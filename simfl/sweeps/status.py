"""State of the runs of a sweep, its display, and early stopping.

Median stopping: Golovin et al. 2017, "Google Vizier: a service for black-box optimization", section 3.2.2.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import mean, median

from simfl import config, files
from simfl.errors import RunError
from simfl.json_files import JsonLines
from simfl.reports.results import RunResult, result_of
from simfl.reports.shared_prefixes import longest_prefixes
from simfl.runs.folder import LOG, RUN, SWEEP, JsonObject, read_json, write_json
from simfl.runs.manifest import refuse_another
from simfl.runs.results import Run
from simfl.runs.storage import is_url
from simfl.runs.summary import ENDED, read_summary
from simfl.sweeps.file import MedianStopping, Sweep
from simfl.sweeps.folder import RunLocation
from simfl.sweeps.fork import check_fork
from simfl.sweeps.job import Outcome, SweepJob, request_stop
from simfl.sweeps.point import Point
from simfl.sweeps.search import SearchPlan
from simfl.sweeps.study import Study
from simfl.tracking.watch import RunView, score_key

FETCH_SECONDS = 5.0  # between two downloads of a log from a URL


@dataclass
class SweepState:
    """The waiting, running and ended runs of a sweep."""

    sweep: Sweep
    location: RunLocation
    points: list[Point] = field(default_factory=list)  # all runs that are known; a search adds its trials
    study: Study | None = None  # of a search
    waiting: list[SweepJob] = field(default_factory=list)
    running: dict[str, SweepJob] = field(default_factory=dict)
    outcomes: dict[str, Outcome] = field(default_factory=dict)  # of all ended runs
    before: set[str] = field(default_factory=set)  # runs that had ended before this session
    views: dict[str, RunView] = field(default_factory=dict)  # contents of the logs
    logs: dict[str, JsonLines] = field(default_factory=dict)
    results: dict[Path, RunResult] = field(default_factory=dict)  # of runs that have ended in this session, by folder
    _next_fetch: float = 0.0

    @staticmethod
    def open(sweep: Sweep, location: RunLocation, resume: bool) -> SweepState:
        """Find out which runs have ended and which remain.

        Raises:
            ConfigError: The run that the trials of a search start from cannot be forked.
            RunError: The location holds a run or, without `resume`, a sweep; or a run in it belongs to another
                experiment, or its trials to another search.
        """
        if (location.folder / RUN).exists():
            raise RunError(f"{location}: holds a run; give another --out")
        exists = (location.folder / SWEEP).exists()
        if exists and not resume:
            raise RunError(f"{location}: holds a sweep; resume it with --resume, or give another --out")
        state = SweepState(sweep, location, list(sweep.points))
        if sweep.search is not None:
            _check_fork(sweep.search)
            state.study = Study(sweep.search)
        if exists:
            state._restore_trials(read_json(location.folder / SWEEP))
        prefixes = longest_prefixes({p.label: p.experiment for p in sweep.points})
        for point in state.points:
            state._find_status(point, prefixes.get(point.label))
        return state

    def _restore_trials(self, stored: JsonObject) -> None:
        """Add the trials of an earlier session of the search to the points."""
        before = stored.get("search")
        if (before is None) != (self.study is None):
            kind = "a search" if before is not None else "a sweep without a search"
            raise RunError(f"{self.location}: holds {kind}; give another --out")
        if before is None or self.study is None:
            return
        now = self.study.to_json()
        for key in ("space", "metric", "direction"):
            if before[key] != now[key]:
                raise RunError(f"{self.location}: the {key} of the search has changed; give another --out")
        for run in stored["runs"]:
            self.points.append(self.study.restore(run["label"], run["settings"], run["draw"]))

    def _find_status(self, point: Point, prefix: str | None) -> None:
        """Note whether a run has ended or waits."""
        own = self.location_of(point.label)
        if (own.folder / RUN).exists():
            refuse_another(own.folder, config.dump(point.experiment))
        status = (read_summary(own.folder) or {}).get("status", "")
        if self.study is not None or (status in ENDED and self.sweep.stop.median is not None):
            self.read_log(point.label)
        if status in ENDED:
            self.outcomes[point.label] = Outcome(point.label, status)
            self.before.add(point.label)
            self._tell_study(self.outcomes[point.label])
        else:
            self.waiting.append(self._job(point, prefix))

    def _job(self, point: Point, prefix: str | None = None) -> SweepJob:
        """Return the job of a run; `prefix` is the run that it continues."""
        own, fork = self.location_of(point.label), self.sweep.search and self.sweep.search.search.fork
        if fork:
            url = fork.run if is_url(fork.run) else ""
            return SweepJob(point.label, point.experiment, own, RunLocation(Path(fork.run), url), fork.at)
        return SweepJob(point.label, point.experiment, own, self.location_of(prefix) if prefix else None)

    @property
    def left(self) -> int:
        """Number of runs that have not started."""
        return len(self.waiting) + (self.study.left if self.study is not None else 0)

    @property
    def size(self) -> int:
        """Number of all runs, those that a search will propose included."""
        return len(self.points) + (self.study.left if self.study is not None else 0)

    def location_of(self, label: str) -> RunLocation:
        """Return the location of a run."""
        return self.location.child("runs", label)

    def write_points(self, ended: bool = False) -> None:
        """Write the list of runs; runs of an earlier version of the file remain if they have a folder.

        With `ended`, the results of a search are written too.

        The part of a sweep that `--only` selects leaves the others on the list: other processes may execute them.
        """
        runs = {point.label: self._entry(point) for point in self.points}
        path = self.location.folder / SWEEP
        listed_before = {run["label"]: run for run in read_json(path)["runs"]} if path.exists() else {}
        if self.sweep.partial:
            runs = listed_before | runs
        for label, run in listed_before.items():
            if (self.location_of(label).folder / RUN).exists():
                runs.setdefault(label, run)
        content = {"name": self.sweep.name, "runs": list(runs.values()), "table": asdict(self.sweep.table)}
        if self.study is not None:
            content["search"] = self.study.to_json() | (self.study.results() if ended else {})
        files.make_folder(self.location.folder / "runs")
        write_json(path, content)
        self.location.send(SWEEP)

    def _entry(self, point: Point) -> JsonObject:
        """Return a run as `sweep.json` lists it; of a trial, also what restores it."""
        entry = {"label": point.label, "varied": dict(point.varied)}
        if self.study is None:
            return entry
        return {**entry, "settings": dict(point.settings), "draw": self.study.trials[point.label].draw}

    def next(self) -> SweepJob | None:
        """Return the next run to start; a run with a prefix waits until the prefix has ended."""
        unfinished = [job.location for job in (*self.waiting, *self.running.values())]
        for i, job in enumerate(self.waiting):
            if job.prefix not in unfinished:
                self.running[job.label] = self.waiting.pop(i)
                return job
        return self._propose()

    def _propose(self) -> SweepJob | None:
        """Return a new trial of the search, which is listed before it starts; None if there is none to propose."""
        if self.study is None or not self.study.left or (point := self.study.propose()) is None:
            return None
        self.points.append(point)
        self.write_points()
        self.running[point.label] = self._job(point, self._prefix_of(point))
        return self.running[point.label]

    def _prefix_of(self, point: Point) -> str | None:
        """Return the completed trial that a new one continues, where the number of rounds varies."""
        if not any(path.rpartition(".")[2] == "rounds" for path in point.settings):
            return None
        done = {p.label: p.experiment for p in self.points if self._completed(p.label)}
        return longest_prefixes({**done, point.label: point.experiment}).get(point.label)

    def _completed(self, label: str) -> bool:
        return label in self.outcomes and self.outcomes[label].status == "completed"

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
        self.running.pop(outcome.label, None)
        self.outcomes[outcome.label] = outcome
        if self.study is not None:
            self.read_log(outcome.label)
            self._tell_study(outcome)

    def read_result(self, outcome: Outcome) -> None:
        """Read the log and the scores of a run that has ended, while others are in progress."""
        self.read_log(outcome.label)
        point = next(point for point in self.points if point.label == outcome.label)
        folder = self.location_of(outcome.label).folder
        result = self.results[folder] = result_of(folder, point.varied, point.experiment)
        _ = result.scores  # computed on the first use

    def _tell_study(self, outcome: Outcome) -> None:
        """Report the scores and the end of a trial; an interrupted one is resumed with the sweep."""
        if self.study is None or outcome.status == "interrupted":
            return
        result = result_of(self.location_of(outcome.label).folder, {})
        self.study.report(outcome.label, self.scores(outcome.label))
        name = self.study.plan.objective.name
        scores = result.scores if ":" in name else result.summary.get("final", {})
        self.study.end(outcome.label, outcome.status, scores.get(name))

    def scores(self, label: str) -> dict[int, float]:
        """Return the scores of a run by round: of the first split and model, or those that a search optimizes."""
        found = self.views[label].scores if label in self.views else {}
        if self.study is not None:
            wanted = self.study.plan.objective
            return found.get(score_key(wanted.split, wanted.model, wanted.metric), {})
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
    """Ask running runs to end whose scores are low compared to those of the others."""
    for label, job in list(state.running.items()):
        if _is_low(state, label):
            request_stop(job.location, "stopped")


def _is_low(state: SweepState, label: str) -> bool:
    """Return whether the pruner of the search, or else the rule of the sweep, ends a run."""
    if state.study is not None:
        return state.study.report(label, state.scores(label))
    rule = state.sweep.stop.median
    if rule is None:
        return False
    others = [state.scores(p.label) for p in state.points if p.label != label]
    return is_behind(state.scores(label), others, rule)


def _check_fork(plan: SearchPlan) -> None:
    """Raise ConfigError or RunError if trials cannot start from the run that the search names."""
    fork = plan.search.fork
    if fork is not None and not is_url(fork.run):
        lowest = {path: domain.corners[0] for path, domain in plan.space.items()}
        check_fork(Run(fork.run), plan.point("trial", lowest).experiment, fork.at)


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
