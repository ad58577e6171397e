"""One run of a sweep, executed in any process."""

from __future__ import annotations

import time
import traceback
from dataclasses import dataclass
from typing import Any

from simfl import simulation
from simfl.errors import SimflError
from simfl.experiment import Experiment
from simfl.runs.folder import ERROR
from simfl.runs.results import Run
from simfl.runs.summary import read_summary
from simfl.safe_text import mask_secrets
from simfl.session.options import RunOptions
from simfl.sweeps.folder import RunLocation
from simfl.sweeps.fork import fork

STOP = "stop"  # file in the folder of a run: the run ends before its next round, with the text of the file as status
POLL_SECONDS = 5.0  # between two reads of that file at a URL


@dataclass(frozen=True)
class SweepJob:
    """A run to start or to resume."""

    label: str
    experiment: Experiment
    location: RunLocation
    prefix: RunLocation | None = None  # a run to fork from
    prefix_rounds: int | None = None  # of it, rounds to keep; None: all, if it completed, or else none


@dataclass(frozen=True)
class Outcome:
    """End of a run."""

    label: str
    status: str  # completed, stopped (by early stopping), interrupted, failed
    error: str = ""  # one line


def execute(
    job: SweepJob, shared: dict[str, Any], display: Any = None, workers: int = 1, profile: bool = False
) -> Outcome:
    """Execute a run, from its last checkpoint if there is one; a failure ends this run only.

    With several `workers`, this process leads the run, and connects them to the Ray that it is a part of.
    """
    try:
        for name in (STOP, ERROR):
            job.location.remove(name)
        _fork_from_prefix(job, shared)
        options = RunOptions(
            job.location.url or job.location.folder,
            backend="inline" if workers == 1 else "ray",
            workers=workers,
            address=None if workers == 1 else "auto",
            resume=_exists(job),
            display=display,
            profile=profile,
            until=StopRequest(job.location),
            shared=shared,
        )
        summary = simulation.run(job.experiment, options)
    except Exception as error:
        shared.clear()  # the failed run may have left incomplete objects
        return failed(job, error)
    return Outcome(job.label, summary["status"])


def _exists(job: SweepJob) -> bool:
    return bool(job.location.read("experiment.yaml"))


def _fork_from_prefix(job: SweepJob, shared: dict[str, Any]) -> None:
    """Copy the rounds of another run."""
    if job.prefix is None or _exists(job):
        return
    with job.prefix.reading() as source:
        summary = read_summary(source) or {}
        step = job.prefix_rounds or (summary["rounds"] if summary.get("status") == "completed" else 0)
        if step:
            with job.location.writing() as target:
                fork(Run(source), target, job.experiment, step, shared, source_name=str(job.prefix))


def failed(job: SweepJob, error: Exception) -> Outcome:
    """Return the outcome of a run that raised `error`, and write the traceback to its folder."""
    lines = str(error).strip().splitlines() or [""]
    kind = [] if isinstance(error, SimflError) else [f"{type(error).__name__}:"]
    line = mask_secrets(" ".join([*kind, lines[0], *lines[1:][-1:]]))  # the last line of a ClientError is the cause
    job.location.write(ERROR, mask_secrets(f"{line}\n\n{''.join(traceback.format_exception(error))}"))
    return Outcome(job.label, "failed", line)


class StopRequest:
    """Callable that returns the status with which a run was asked to stop, or an empty string."""

    def __init__(self, location: RunLocation) -> None:
        self.location, self.next_read = location, 0.0

    def __call__(self) -> str:
        """Return the requested status, or an empty string."""
        if time.monotonic() < self.next_read:
            return ""
        self.next_read = time.monotonic() + (POLL_SECONDS if self.location.url else 0.0)
        return self.location.read(STOP).strip()


def request_stop(location: RunLocation, status: str) -> None:
    """Ask the run at a location to end before its next round."""
    location.write(STOP, status)
