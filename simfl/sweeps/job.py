"""One run of a sweep, done in whatever process has a seat free."""

from __future__ import annotations

import time
import traceback
from dataclasses import dataclass
from typing import Any

from simfl import simulation
from simfl.errors import SimflError
from simfl.experiment import Experiment
from simfl.runs.results import ERROR, Run, summary_of
from simfl.session.options import RunOptions
from simfl.sweeps.folder import Place
from simfl.sweeps.fork import fork

STOP = "stop"  # a file where a run lies: the run ends before its next round, and the word in it is its status
PAUSE = 5.0  # seconds between two looks for that file where it is not on a disk


@dataclass(frozen=True)
class Job:
    """A run to be started or gone on with."""

    label: str
    experiment: Experiment
    place: Place
    after: Place | None = None  # a run of fewer rounds that this one goes on from, if it was completed


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    label: str
    status: str  # completed, stopped (it fell behind), interrupted, failed
    error: str = ""  # one line


def perform(job: Job, shared: dict[str, Any], display: Any = None) -> Outcome:
    """Run to the end, from the last commit if there is one. Whatever goes wrong is this run's alone."""
    try:
        for name in (STOP, ERROR):
            job.place.remove(name)
        _begin(job, shared)
        summary = simulation.run(
            job.experiment,
            RunOptions(
                job.place.url or job.place.folder,
                "inline",
                resume=_begun(job),
                display=display,
                until=Until(job.place),
                shared=shared,
            ),
        )
    except Exception as error:
        shared.clear()  # what failed may have left things half done
        return failed(job, error)
    return Outcome(job.label, summary["status"])


def _begun(job: Job) -> bool:
    return bool(job.place.read("experiment.yaml"))


def _begin(job: Job, shared: dict[str, Any]) -> None:
    """Take over the rounds that a shorter run has done already."""
    if job.after is None or _begun(job):
        return
    with job.after.opened() as source:
        summary = summary_of(source) or {}
        if summary.get("status") == "completed":
            with job.place.filled() as target:
                fork(Run(source), target, job.experiment, summary["rounds"], shared, home=str(job.after))


def failed(job: Job, error: Exception) -> Outcome:
    """The outcome of a run that raised; all that is known of it stands where the run lies."""
    lines = str(error).strip().splitlines() or [""]
    named = [] if isinstance(error, SimflError) else [f"{type(error).__name__}:"]
    line = " ".join([*named, lines[0], *lines[1:][-1:]])  # what a client's failure was, its traceback says last
    job.place.write(ERROR, f"{line}\n\n{''.join(traceback.format_exception(error))}")
    return Outcome(job.label, "failed", line)


class Until:
    """Whether a run is asked to end: its status, or an empty word."""

    def __init__(self, place: Place) -> None:
        self.place, self.next_look = place, 0.0

    def __call__(self) -> str:
        if time.monotonic() < self.next_look:
            return ""
        self.next_look = time.monotonic() + (PAUSE if self.place.url else 0.0)
        return self.place.read(STOP).strip()


def ask(place: Place, status: str) -> None:
    """Have the run that lies there end before its next round."""
    place.write(STOP, status)
