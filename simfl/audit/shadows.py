"""Shadow runs of an attack: runs with the same settings on other units, as a sweep over seeds makes them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from simfl.errors import ConfigError
from simfl.experiment import Experiment
from simfl.runs.folder import RUN, SWEEP
from simfl.runs.results import Run
from simfl.runs.summary import read_summary


def shadow_runs(run: Run, sweep: Path) -> list[Run]:
    """Return the completed runs of a sweep that differ from a run in the seed and the partition alone.

    The run itself is left out, so that the runs of a sweep are shadow runs of each other (Carlini et al. 2022).

    Raises:
        ConfigError: The folder holds no sweep, or the sweep has no such run.
    """
    if not (sweep / SWEEP).exists():
        raise ConfigError(f"--shadows: {sweep} holds no sweep; give a single run with --shadow")
    found = []
    for file in sorted(sweep.glob(f"runs/*/{RUN}")):
        is_completed = (read_summary(file.parent) or {}).get("status") == "completed"
        if is_completed and file.parent.resolve() != run.folder.resolve():
            other = Run(file.parent)
            if _on_other_units(run.experiment, other.experiment):
                found.append(other)
    if not found:
        raise ConfigError(
            f"--shadows: {sweep} has no completed run that differs from {run.folder} in seed and partition alone"
        )
    return found


def _on_other_units(one: Experiment, other: Experiment) -> bool:
    """Return whether two experiments differ in the name, the seed and the partition at most."""
    return one == replace(other, name=one.name, seed=one.seed, partition=one.partition)
