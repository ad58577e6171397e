"""What a sweep's file wants in its table: held to its experiments before they run, and to the runs when it is made."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from simfl.errors import ConfigError, nearest
from simfl.experiment import Experiment
from simfl.reports.results import POINTS, SPREAD, Result
from simfl.reports.significance import name_of
from simfl.reports.table import SEED


@dataclass(frozen=True)
class Shown:
    """What a sweep's table has."""

    metrics: tuple[str, ...] = ()  # scores, e.g. test.personal.anls:worst; none: the main one of each split and model
    against: str | None = None  # the line that others are held against; null: the first


class Planned(Protocol):
    """A run as far as its table is concerned."""

    @property
    def label(self) -> str:
        """Its name."""

    @property
    def shown(self) -> Mapping[str, Any]:
        """What it has of everything that varies."""

    @property
    def experiment(self) -> Experiment:
        """What is run."""


def check(wanted: Shown, planned: Sequence[Planned]) -> None:
    """ConfigError for a score that none of these runs can have, and for a line that will not be there."""
    scores = [scores_of(run.experiment) for run in planned]
    for name in wanted.metrics if all(scores) else ():  # else some are known after a run alone
        known = {score for names in scores for score in names}
        if name not in known:
            raise ConfigError(f"table.metrics: no run will have a score {name!r}; {nearest(name, _plain(name, known))}")
    _check_line(wanted.against, [(run.label, run.shown) for run in planned])


def cut(wanted: Shown, planned: Sequence[Planned]) -> Shown:
    """What of it some of a sweep's runs can have: others, which lack some scores or lines, may be left out."""
    scores = [scores_of(run.experiment) for run in planned]
    known = {score for names in scores for score in names}
    metrics = tuple(name for name in wanted.metrics if name in known or not all(scores))
    lines = lines_of((run.label, run.shown) for run in planned)
    return Shown(metrics, wanted.against if wanted.against in lines else None)


def met(wanted: Shown, results: Sequence[Result]) -> Shown:
    """What of it these runs have; ConfigError for what they lack though all have ended well."""
    known = {name for run in results for name in run.scores}
    for name in wanted.metrics:
        if name not in known and all(run.scores for run in results):
            raise ConfigError(f"table.metrics: no run has a score {name!r}; {nearest(name, _plain(name, known))}")
    _check_line(wanted.against, [(run.label, run.shown) for run in results])
    return Shown(tuple(name for name in wanted.metrics if name in known), wanted.against)


def wanted(paths: Sequence[Path]) -> Shown:
    """What the file of the sweep in a folder wants; nothing of several folders, or of a run."""
    points = paths[0] / POINTS
    said = json.loads(points.read_bytes()).get("table") if len(paths) == 1 and points.exists() else None
    return Shown(tuple(said["metrics"]), said["against"]) if said else Shown()


def scores_of(experiment: Experiment) -> list[str]:
    """The scores that a run ends with, by the names of summaries; empty where its objective tells none beforehand.

    Spread over clients is there only where it is known whose an example is, which the partition tells.
    """
    asked, metrics = experiment.evaluate, experiment.phases[-1].objective.metrics
    names = [
        name_of(split, model, metric, asked.splits[0])
        for split in asked.splits
        for model in asked.models
        for metric in metrics
    ]
    return names + [f"{name}:{kind}" for name in names for kind in SPREAD]


def lines_of(runs: Iterable[tuple[str, Mapping[str, Any]]]) -> set[str]:
    """What a line can be called: a value of what varies, or a run's name. Of each run its name and what it has."""
    return {str(name) for label, shown in runs for name in (label, *_varied(shown))}


def _varied(shown: Mapping[str, Any]) -> list[Any]:
    return [value for name, value in shown.items() if name != SEED]


def _check_line(against: str | None, runs: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
    if against is not None and against not in lines_of(runs):
        values = {str(value) for _, shown in runs for value in _varied(shown)}
        raise ConfigError(f"table.against: no line has {against!r}; {nearest(against, values or lines_of(runs))}")


def _plain(name: str, known: set[str]) -> set[str]:
    """The names to choose from: with a spread over clients only for who asks for one."""
    return known if ":" in name else {other for other in known if ":" not in other}
