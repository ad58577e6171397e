"""One run of a sweep: its name, its values of what varies, and its experiment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from simfl import config
from simfl.config.inheritance import Settings
from simfl.experiment import Experiment


@dataclass(frozen=True)
class Point:
    """One run of a sweep."""

    label: str  # name of the run and its folder
    varied: Mapping[str, object]  # its value of everything that varies: column of the tables -> number or text
    experiment: Experiment
    settings: Settings = field(default_factory=dict)  # of a trial: dotted path -> value, exactly as proposed

    @staticmethod
    def of(
        label: str, varied: Mapping[str, object], given: Mapping[str, object], changes: Iterable[Settings], group: str
    ) -> Point:
        """Return a run of the experiment `given` with changed settings, in a `group` of Weights & Biases.

        Raises:
            ConfigError: A setting does not exist, or the experiment is invalid.
        """
        changed, settings = dict(given), Settings()
        for change in changes:
            changed, settings = config.with_settings(changed, change), settings | change
        experiment = config.parse({**changed, "name": label, **_grouped(changed, group, varied)})
        return Point(label, varied, experiment, settings)


def _grouped(given: Mapping[str, object], group: str, varied: Mapping[str, object]) -> dict[str, object]:
    """Group the runs of a sweep in Weights & Biases, with the values of everything that varies."""
    tracking = given.get("tracking")
    if not isinstance(tracking, Mapping) or not isinstance(tracking.get("wandb"), Mapping):
        return {}
    return {"tracking": {**tracking, "wandb": {"group": group, "varied": dict(varied), **tracking["wandb"]}}}
