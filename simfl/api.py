"""simfl from Python: `run` an experiment, `load` what a run left."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from simfl import config, simulation
from simfl.errors import ConfigError
from simfl.experiment import Experiment
from simfl.runs.results import Run
from simfl.tracking.run_folder import RUN, is_taken

Given = Experiment | Mapping[str, Any] | str | Path


def run(
    experiment: Given,
    out: Path | str | None = None,
    backend: str = "inline",
    workers: int | str | None = None,
    address: str | None = None,
    resume: bool = False,
    display: Any = None,
) -> Run:
    """Run an experiment to its end and return what it left.

    `experiment`: a mapping with the keys of an experiment file, in which Python objects may stand in place of names; or
    an `Experiment`; or the path of a file. `out`: the folder of the run, by default `runs/NAME`, or the first free of
    `NAME-2`, `NAME-3`, …; to resume, the newest of these. `display`: told how the run goes; by default a line in a
    terminal, and nothing elsewhere. ConfigError for what cannot be meant, ClientError for a client that failed.
    """
    if backend == "inline" and (workers or address):
        raise ConfigError(f"{'workers' if workers else 'address'}: has no effect with backend inline")
    whole = experiment_of(experiment)
    folder = Path(out) if out is not None else folder_of(whole.name, resume)
    with _display(display) as shown:
        simulation.run(whole, folder, backend, workers or "auto", address, resume, shown)
    return Run(folder, whole)


def load(folder: Path | str, experiment: Given | None = None) -> Run:
    """A run by its folder. `experiment` only if Python objects stood in it that no file names."""
    return Run(folder, None if experiment is None else experiment_of(experiment))


def experiment_of(given: Given) -> Experiment:
    """The experiment that a mapping or a file describes."""
    if isinstance(given, (str, Path)):
        return config.load(Path(given))
    return given if isinstance(given, Experiment) else config.parse(given)


def folder_of(name: str, resume: bool) -> Path:
    """A folder under runs/ that holds no run yet; to resume, the newest one of this name."""
    first = Path("runs") / name
    numbered = (Path("runs") / f"{name}-{number}" for number in itertools.count(2))
    found = list(itertools.takewhile(is_taken, itertools.chain([first], numbered)))
    if resume:
        return next((path for path in reversed(found) if (path / RUN).exists()), first)
    return Path("runs") / f"{name}-{len(found) + 1}" if found else first


def _display(given: Any) -> Any:
    """What is told how the run goes, as a context."""
    if given is not None or not sys.stderr.isatty():
        return nullcontext(given)
    from simfl.tracking.progress import Progress

    return Progress()
