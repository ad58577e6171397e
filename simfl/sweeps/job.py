"""One run of a sweep, done in whatever process has a seat free."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simfl import files, simulation
from simfl.errors import SimflError
from simfl.experiment import Experiment
from simfl.runs.results import ERROR, Run, summary_of
from simfl.sweeps.fork import fork

STOP = "stop"  # a file in a run's folder: the run ends before its next round, and the word in it is its status


@dataclass(frozen=True)
class Job:
    """A run to be started or gone on with."""

    label: str
    experiment: Experiment
    folder: Path
    after: Path | None = None  # a run of fewer rounds that this one goes on from, if it was completed


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    label: str
    status: str  # completed, stopped (it fell behind), interrupted, failed
    error: str = ""  # one line


def perform(job: Job, shared: dict[str, Any], display: Any = None) -> Outcome:
    """Run to the end, from the last commit if there is one. Whatever goes wrong is this run's alone."""
    (job.folder / STOP).unlink(missing_ok=True)
    (job.folder / ERROR).unlink(missing_ok=True)
    try:
        _begin(job, shared)
        resume = (job.folder / "experiment.yaml").exists()
        summary = simulation.run(
            job.experiment,
            job.folder,
            "inline",
            resume=resume,
            display=display,
            until=lambda: asked(job.folder),
            shared=shared,
        )
    except Exception as error:
        shared.clear()  # what failed may have left things half done
        return failed(job, error)
    return Outcome(job.label, summary["status"])


def _begin(job: Job, shared: dict[str, Any]) -> None:
    """Take over the rounds that a shorter run has done already."""
    if job.after is not None and not (job.folder / "experiment.yaml").exists():
        summary = summary_of(job.after) or {}
        if summary.get("status") == "completed":
            fork(Run(job.after), job.folder, job.experiment, summary["rounds"], shared)


def failed(job: Job, error: Exception) -> Outcome:
    """The outcome of a run that raised; all that is known of it stands in its folder."""
    lines = str(error).strip().splitlines() or [""]
    named = [] if isinstance(error, SimflError) else [f"{type(error).__name__}:"]
    line = " ".join([*named, lines[0], *lines[1:][-1:]])  # what a client's failure was, its traceback says last
    text = "".join(traceback.format_exception(error))
    files.make_folder(job.folder)
    files.write(job.folder / ERROR, lambda file: file.write(f"{line}\n\n{text}".encode()))
    return Outcome(job.label, "failed", line)


def ask(folder: Path, status: str) -> None:
    """Have the run in a folder end before its next round."""
    files.write(folder / STOP, lambda file: file.write(status.encode()))


def asked(folder: Path) -> str:
    """The status with which a run is asked to end; empty if it is not."""
    path = folder / STOP
    return path.read_text().strip() or "interrupted" if path.exists() else ""
