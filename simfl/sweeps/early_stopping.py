"""Median stopping: a run that has fallen behind the others is ended early (Golovin et al. 2017, Vizier, 3.2.2)."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import mean, median

from simfl.sweeps.file import Median
from simfl.sweeps.job import ask
from simfl.sweeps.status import Standing


def judge(standing: Standing) -> None:
    """Ask runs to end that have fallen behind the others."""
    if standing.sweep.stop.median is not None:
        for label, job in list(standing.running.items()):
            others = [standing.scores(p.label) for p in standing.sweep.points if p.label != label]
            if behind(standing.scores(label), others, standing.sweep.stop.median):
                ask(job.place, "stopped")


def behind(own: dict[int, float], others: Iterable[dict[int, float]], rule: Median) -> bool:
    """Whether a run's best score so far is below the median of the others' mean scores up to the same round.

    Scores by round; all others count that have come as far.
    """
    last = max(own, default=0)
    if last < rule.after:
        return False
    reached = [
        [v for step, v in scores.items() if 0 < step <= last] for scores in others if max(scores, default=0) >= last
    ]
    means = [mean(values) for values in reached if values]
    best = max(v for step, v in own.items() if step > 0)
    return len(means) >= rule.least and best < median(means)
