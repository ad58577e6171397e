"""What a run's summary says when it ends: scores, what blind baselines reach, whether the ledger is as planned."""

from __future__ import annotations

from typing import Any

from simfl import evaluation
from simfl.plans.check import compare, tables_of
from simfl.runs.record import Record
from simfl.runs.snapshot import Snapshot
from simfl.session.prepare import PreparedRun
from simfl.session.session import RunSession


def facts(sitting: RunSession, snapshot: Snapshot, pace: float | None, ended_well: bool) -> dict[str, Any]:
    """All but privacy; `pace`: seconds of a round, in the median. A run that failed is not held to its plan."""
    settled, record = sitting.settled, sitting.record
    split = settled.experiment.evaluate.splits[0]
    steps = {"initial": 0, "final": record.last_step("evaluations")}
    scores = {when: evaluation.headlines(record.rows_at("evaluations", step), split) for when, step in steps.items()}
    return {
        "name": settled.experiment.name,
        "clients": len(settled.partition),
        **scores,
        "baselines": _baselines(settled),
        "seconds": {"total": record.elapsed, "startup": sitting.startup, "per_round_median": pace},
        "plan": _compared_with_plan(settled, record, snapshot) if ended_well else None,
        "folder": record.home,
    }


def _compared_with_plan(settled: PreparedRun, record: Record, snapshot: Snapshot) -> str:
    forked = record.manifest.get("forked", {}).get("step", 0)
    made = tables_of(record.folder, snapshot.step, forked)
    return compare(settled.experiment, settled.setting.dataset, len(settled.partition), made)


def _baselines(settled: PreparedRun) -> dict[str, Any]:
    """What the data set's blind baselines reach on the first evaluated split, by the headline metric."""
    experiment = settled.experiment
    metric = experiment.phases[-1].objective.metric
    known: Any = settled.setting.dataset.card.get("baselines", {})
    found = known.get(experiment.evaluate.splits[0], known)
    return {name: scores[metric] for name, scores in found.items() if metric in scores}
