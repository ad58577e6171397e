"""The table that a sweep file requests: checked against its experiments before they run, and against the results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from simfl.data.base import HELD_OUT
from simfl.errors import ConfigError, nearest
from simfl.evaluation.headlines import LOSS, score_name
from simfl.reports.results import SPREAD, RunResult
from simfl.reports.table import SEED
from simfl.runs.folder import SWEEP, read_json

if TYPE_CHECKING:
    from simfl.experiment import Experiment


@dataclass(frozen=True)
class TableSpec:
    """The content of a sweep's table."""

    metrics: tuple[str, ...] = ()  # scores, e.g. test.personal.anls:worst; none: the main one of each split and model
    against: str | None = None  # the row that others are tested against; null: the first


class PlannedRun(Protocol):
    """A run of a sweep that need not have started."""

    @property
    def label(self) -> str:
        """The name of the run."""

    @property
    def varied(self) -> Mapping[str, object]:
        """The run's values of the settings that vary."""

    @property
    def experiment(self) -> Experiment:
        """The experiment."""


def check_spec(spec: TableSpec, planned: Sequence[PlannedRun]) -> None:
    """Raise ConfigError for a score that none of the planned runs can have, and for an unknown reference row."""
    scores = [possible_scores(run.experiment) for run in planned]
    for name in spec.metrics if all(scores) else ():  # otherwise the scores of some runs are known at their end only
        known = {score for names in scores for score in names}
        if name not in known:
            hint = nearest(name, _candidates(name, known))
            raise ConfigError(f"table.metrics: no run will have a score {name!r}; {hint}")
    _check_reference(spec.against, [(run.label, run.varied) for run in planned])


def restrict_to_planned(spec: TableSpec, planned: Sequence[PlannedRun]) -> TableSpec:
    """Return the part of the spec that some of a sweep's runs can have, where the others are left out."""
    scores = [possible_scores(run.experiment) for run in planned]
    known = {score for names in scores for score in names}
    metrics = tuple(name for name in spec.metrics if name in known or not all(scores))
    names = row_names((run.label, run.varied) for run in planned)
    return TableSpec(metrics, spec.against if spec.against in names else None)


def restrict_to_results(spec: TableSpec, results: Sequence[RunResult]) -> TableSpec:
    """Return the part of the spec that the results have.

    Raises:
        ConfigError: All runs have ended well, and none has a score or a row of the spec.
    """
    known = {name for run in results for name in run.scores}
    for name in spec.metrics:
        if name not in known and all(run.scores for run in results):
            raise ConfigError(f"table.metrics: no run has a score {name!r}; {nearest(name, _candidates(name, known))}")
    _check_reference(spec.against, [(run.label, run.varied) for run in results])
    return TableSpec(tuple(name for name in spec.metrics if name in known), spec.against)


def read_spec(paths: Sequence[Path]) -> TableSpec:
    """Read the spec of the sweep in a folder; the default for several folders, or for a run."""
    path = paths[0] / SWEEP
    stored = read_json(path).get("table") if len(paths) == 1 and path.exists() else None
    return TableSpec(tuple(stored["metrics"]), stored["against"]) if stored else TableSpec()


def possible_scores(experiment: Experiment) -> list[str]:
    """Return the names of the scores that a run can end with; empty where the objective does not declare them.

    Statistics over clients exist only if the partition says which client an example belongs to.
    """
    evaluate, metrics = experiment.evaluate, experiment.phases[-1].objective.metrics
    metrics = (*metrics, LOSS) if metrics and evaluate.loss and LOSS not in metrics else metrics
    held_out = experiment.partition.holdout is not None
    names = [
        score_name(split, model, metric, evaluate.splits[0], held_out)
        for split in dict.fromkeys([*evaluate.splits, *([HELD_OUT] if held_out else [])])
        for model in evaluate.models
        for metric in metrics
    ]
    return names + [f"{name}:{kind}" for name in names for kind in SPREAD]


def row_names(runs: Iterable[tuple[str, Mapping[str, object]]]) -> set[str]:
    """Return the names by which rows can be referred to, from labels and values: the label, or a varied value."""
    return {str(name) for label, varied in runs for name in (label, *_values(varied))}


def _values(varied: Mapping[str, object]) -> list[object]:
    return [value for name, value in varied.items() if name != SEED]


def _check_reference(against: str | None, runs: Sequence[tuple[str, Mapping[str, object]]]) -> None:
    if against is not None and against not in row_names(runs):
        values = {str(value) for _, varied in runs for value in _values(varied)}
        raise ConfigError(f"table.against: no row has {against!r}; {nearest(against, values or row_names(runs))}")


def _candidates(name: str, known: set[str]) -> set[str]:
    """Return the names to suggest; statistics over clients only if the given name asks for one."""
    return known if ":" in name else {other for other in known if ":" not in other}
