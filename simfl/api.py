"""Python interface: `run` an experiment, `load` the results of a run, `check_data` before a run."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from simfl import config, files, simulation
from simfl.config import fields
from simfl.data.base import Data
from simfl.data.check import DatasetReport, check_dataset
from simfl.experiment import Experiment
from simfl.runs.folder import RUN, is_taken
from simfl.runs.mirror import opened
from simfl.runs.results import Run
from simfl.runs.storage import is_url
from simfl.runtime.backend import choose_backend
from simfl.session.options import RunOptions

ExperimentLike = Experiment | Mapping[str, object] | str | Path


def run(
    experiment: ExperimentLike,
    out: Path | str | None = None,
    backend: str = "auto",
    workers: int | str | None = None,
    address: str | None = None,
    resume: bool = False,
    display: Any = None,
) -> Run:
    """Run an experiment to its end and return its results.

    Args:
        experiment: A mapping with the keys of an experiment file, whose values may be Python objects instead of names;
            or an `Experiment`; or the path of an experiment file.
        out: Folder of the run, or a URL such as s3://bucket/NAME. The default is `runs/NAME`, or the first free one
            of `runs/NAME-2`, `runs/NAME-3`, …; with `resume`, the newest of these.
        backend: `inline` (this process), `ray`, or `auto`: Ray with 2 or more GPUs, or without a GPU with 4 or more
            CPUs, and whenever `workers` or `address` is given; else inline. Results are bit-identical.
        workers: Number of Ray workers, or `auto`.
        address: Address of a running Ray cluster. The default is to start Ray on this machine.
        resume: Whether to continue from the last checkpoint in the folder of the run.
        display: Object whose methods are called during the run, see `NullDisplay`. The default is a progress line in a
            terminal, and nothing elsewhere.

    Raises:
        ConfigError: The experiment or an argument is invalid.
        ClientError: The computation of a client failed.
    """
    choice = choose_backend(backend, workers, address)
    parsed = experiment_of(experiment)
    folder = folder_of(parsed.name, resume) if out is None else str(out) if is_url(out) else Path(out)
    with _display(display) as shown:
        if choice.message and shown is not None:
            shown.message(choice.message)
        simulation.run(
            parsed, RunOptions(folder, choice.name, workers or "auto", address, resume, shown, notes=choice.gpus)
        )
    return load(folder, parsed)


def load(folder: Path | str, experiment: ExperimentLike | None = None) -> Run:
    """Return the results in the folder of a run, or at its URL, whose current content is downloaded into the cache.

    `experiment` is needed only if the run used Python objects that cannot be imported by name.
    """
    found = opened(str(folder), files.cache_folder()) if is_url(folder) else Path(folder)
    return Run(found, None if experiment is None else experiment_of(experiment))


def check_data(data: object) -> DatasetReport:
    """Return the counts of a data set and what looks wrong in it, as `simfl data check` does. Nothing is stored.

    `data` is given as in an experiment: a name with its settings, or Python objects.
    """
    component: Data = fields.read(Data, data, "data")
    with TemporaryDirectory() as folder:
        return check_dataset(component.preview(Path(folder)))


def experiment_of(given: ExperimentLike) -> Experiment:
    """Return the experiment that a mapping or a file describes."""
    if isinstance(given, (str, Path)):
        return config.load(Path(given))
    return given if isinstance(given, Experiment) else config.parse(given)


def folder_of(name: str, resume: bool) -> Path:
    """Return the first free folder `runs/NAME`, `runs/NAME-2`, …; to resume, the newest one that holds a run."""
    first = Path("runs") / name
    numbered = (Path("runs") / f"{name}-{number}" for number in itertools.count(2))
    found = list(itertools.takewhile(is_taken, itertools.chain([first], numbered)))
    if resume:
        return next((path for path in reversed(found) if (path / RUN).exists()), first)
    return Path("runs") / f"{name}-{len(found) + 1}" if found else first


def _display(given: Any) -> AbstractContextManager[Any]:
    """Return the display as a context manager; the default is a progress line if standard error is a terminal."""
    if given is not None or not sys.stderr.isatty():
        return nullcontext(given)
    from simfl.tracking.progress import Progress

    return Progress()
