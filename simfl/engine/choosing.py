"""How the visits of a phase are trained."""

from __future__ import annotations

from simfl.cohort.plan import Manner
from simfl.experiment import Experiment
from simfl.runs.record import Record


def manner_of(experiment: Experiment, record: Record, phase: int, step: int) -> Manner:
    """How visits of a phase are trained in the round after so many, as the run's folder says."""
    found = {"way": record.manifest["identity"]["way"], "program": experiment.cohort.program, **record.choice(phase)}
    return Manner(found["way"], record.width(step), found["program"])
