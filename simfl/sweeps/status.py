"""How the runs of a sweep stand: what is done, under mode and to do, and what each has said of itself."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, field

from simfl import config, files
from simfl.errors import RunError
from simfl.reports.results import POINTS
from simfl.runs.manifest import refuse_another
from simfl.runs.results import ENDED, summary_of
from simfl.sweeps.file import Sweep
from simfl.sweeps.folder import Place
from simfl.sweeps.job import Job, Outcome
from simfl.sweeps.shared_prefixes import beginnings
from simfl.tracking.run_folder import RUN
from simfl.tracking.watch import Log, View

PAUSE = 5.0  # seconds between two looks at a log that is not on a disk


@dataclass
class Standing:
    """The runs of a sweep."""

    sweep: Sweep
    place: Place
    waiting: list[Job] = field(default_factory=list)
    running: dict[str, Job] = field(default_factory=dict)
    outcomes: dict[str, Outcome] = field(default_factory=dict)  # of the runs that have ended, in this sitting or before
    before: set[str] = field(default_factory=set)  # runs that had ended before this sitting
    views: dict[str, View] = field(default_factory=dict)  # what each run has said of itself
    logs: dict[str, Log] = field(default_factory=dict)
    _next_fetch: float = 0.0

    @staticmethod
    def open(sweep: Sweep, place: Place, resume: bool) -> Standing:
        """What is done already, and what is to do. RunError where another sweep lies or, with `resume`, none."""
        if (place.folder / RUN).exists():
            raise RunError(f"{place}: holds a run already; give another --out")
        there = (place.folder / POINTS).exists()
        if there and not resume:
            raise RunError(f"{place}: holds a sweep already; go on with --resume, or give another --out")
        if resume and not there:
            raise RunError(f"{place}: no sweep to resume here")
        standing, shorter = Standing(sweep, place), beginnings({p.label: p.experiment for p in sweep.points})
        for point in sweep.points:
            own = standing.place_of(point.label)
            if (own.folder / "experiment.yaml").exists():
                refuse_another(own.folder, config.dump(point.experiment))
            status = (summary_of(own.folder) or {}).get("status", "")
            if status in ENDED:
                standing.outcomes[point.label] = Outcome(point.label, status)
                standing.before.add(point.label)
                if sweep.stop.median is not None:
                    standing.hear(point.label)
            else:
                after = standing.place_of(shorter[point.label]) if point.label in shorter else None
                standing.waiting.append(Job(point.label, point.experiment, own, after))
        return standing

    def place_of(self, label: str) -> Place:
        """Where a run lies."""
        return self.place.below("runs", label)

    def write_points(self) -> None:
        """Write down the runs that a file names now; of an older file, those that have a folder stay."""
        runs = {point.label: dict(point.shown) for point in self.sweep.points}
        path = self.place.folder / POINTS
        if path.exists():
            for run in json.loads(path.read_bytes())["runs"]:
                if (self.place_of(run["label"]).folder / "experiment.yaml").exists():
                    runs.setdefault(run["label"], run["shown"])
        listed = [{"label": label, "shown": shown} for label, shown in runs.items()]
        content = {"name": self.sweep.name, "runs": listed, "table": asdict(self.sweep.table)}
        files.make_folder(self.place.folder / "runs")
        files.write(path, lambda file: file.write(json.dumps(content, indent=1).encode()))
        self.place.send(POINTS)

    def next(self) -> Job | None:
        """The next run to begin; one that goes on from another waits for it."""
        open_ = {job.label for job in self.waiting} | self.running.keys()
        for i, job in enumerate(self.waiting):
            if job.after is None or job.after.folder.name not in open_:
                self.running[job.label] = self.waiting.pop(i)
                return job
        return None

    def look(self) -> None:
        """Read on in the logs of the runs under way."""
        fetch = bool(self.place.url) and time.monotonic() >= self._next_fetch
        for label in self.running:
            if fetch:
                self.place_of(label).fetch("log.jsonl")
            self.hear(label)
        if fetch:
            self._next_fetch = time.monotonic() + PAUSE

    def hear(self, label: str) -> None:
        """Read on in the log of one run."""
        log = self.logs.setdefault(label, Log(self.place_of(label).folder / "log.jsonl"))
        if log.path.exists():
            for line in log.lines():
                self.views.setdefault(label, View()).hear(line)

    def end(self, outcome: Outcome) -> None:
        """Note how a run ended."""
        self.place_of(outcome.label).fetch_all()
        self.hear(outcome.label)
        self.running.pop(outcome.label, None)
        self.outcomes[outcome.label] = outcome

    def scores(self, label: str) -> dict[int, float]:
        """The headline score of a run by round: its first split, its first model."""
        found = self.views[label].scores if label in self.views else {}
        return next(iter(found.values()), {})
