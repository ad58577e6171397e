"""A report's curves: scores and losses over rounds, bytes and epsilon, a line for each setting."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from simfl import evaluation
from simfl.reports.chart import Series, lines
from simfl.reports.page import figure, figures
from simfl.reports.results import Result
from simfl.reports.table import Comparison, Line

MOST_LINES = 8  # in one chart; more are told apart by no reader


@dataclass(frozen=True)
class Course:
    """A run by round: what it had sent and reached."""

    bytes: dict[int, int]  # step -> sent so far
    epsilon: dict[int, float]  # step -> spent so far; empty where nothing is private
    scores: dict[str, dict[int, float]]  # by name, as in summaries
    loss: dict[int, float]


Pick = Callable[[Course, str], dict[float, float]]


def course(run: Result) -> Course:
    """How a run went by round."""
    rows = run.run.rounds().to_pylist()
    sent, total = {0: 0}, 0
    for row in rows:
        total += row["total_bytes"]
        sent[row["step"]] = total
    epsilon = {row["step"]: row["epsilon"] for row in rows if row.get("epsilon") is not None}
    first, by_step = run.run.experiment.evaluate.splits[0], dict[int, list[dict[str, Any]]]()
    for row in run.run.evaluations().to_pylist():
        by_step.setdefault(row["step"], []).append(row)
    scores: dict[str, dict[int, float]] = {}
    for step, found in by_step.items():
        for name, value in evaluation.headlines(found, first).items():
            scores.setdefault(name, {})[step] = value
    return Course(sent, epsilon, scores, {r["step"]: r["loss"] for r in rows if r["loss"] is not None})


def by_round(found: Course, metric: str) -> dict[float, float]:
    return {float(step): value for step, value in found.scores.get(metric, {}).items()}


def by_bytes(found: Course, metric: str) -> dict[float, float]:
    return {float(found.bytes[s]): v for s, v in found.scores.get(metric, {}).items() if s in found.bytes}


def by_epsilon(found: Course, metric: str) -> dict[float, float]:
    return {found.epsilon[s]: v for s, v in found.scores.get(metric, {}).items() if s in found.epsilon}


def curves(
    found: Comparison,
    shown: Sequence[Line],
    courses: dict[str, Course],
    metrics: Sequence[str],
    pick: Pick,
    x: str,
    form: Callable[[float], str],
) -> str:
    """A chart for each metric and, where there are many lines, for each value of what varies first."""
    charts = []
    for metric in metrics:
        for where, group, rest in facets(found.settings, shown):
            series = [_series(line, rest, [courses[r.label] for r in line.done], metric, pick) for line in group]
            charts.append(figure(", ".join([metric, *where]), lines(series, x, metric, form)))
    if pick is by_round:
        for where, group, rest in facets(found.settings, shown):
            losses: Pick = lambda one, _: {float(step): value for step, value in one.loss.items()}
            series = [_series(line, rest, [courses[r.label] for r in line.done], "loss", losses) for line in group]
            charts.append(figure(", ".join(["training loss", *where]), lines(series, x, "loss", form)))
    return figures([chart for chart in charts if chart])


def facets(settings: Sequence[str], shown: Sequence[Line]) -> Iterator[tuple[list[str], list[Line], tuple[str, ...]]]:
    """Lines in groups of at most eight where that can be: what a group has in common, its lines, what varies in it."""
    told = varied(settings, shown)
    for count in range(len(told) + 1):
        groups: dict[tuple[str, ...], list[Line]] = {}
        for line in shown:
            groups.setdefault(tuple(str(line.shown[name]) for name in told[:count]), []).append(line)
        if all(len(group) <= MOST_LINES for group in groups.values()) or count == max(len(told) - 1, 0):
            break
    for key, group in groups.items():
        where = [f"{name} {value}" for name, value in zip(told[:count], key, strict=True)]
        yield where, group, tuple(told[count:])


def varied(settings: Sequence[str], shown: Sequence[Line]) -> tuple[str, ...]:
    """What differs between these lines."""
    return tuple(name for name in settings if len({str(line.shown[name]) for line in shown}) > 1)


def _series(line: Line, told: Sequence[str], courses: Sequence[Course], metric: str, pick: Pick) -> Series:
    """The mean over the seeds where all have a value, and what they span."""
    found = [pick(one, metric) for one in courses]
    common = sorted(set.intersection(*(set(one) for one in found))) if found else []
    points = [(x, mean(one[x] for one in found)) for x in common]
    band = [(x, min(one[x] for one in found), max(one[x] for one in found)) for x in common] if len(found) > 1 else []
    return Series(name_of(line, told), points, band)


def name_of(line: Line, told: Sequence[str]) -> str:
    """A line's name by what tells it apart: text as it is, a number after the setting's name."""
    parts = [v if isinstance(v := line.shown[name], str) else f"{name} {v}" for name in told]
    return ", ".join(parts) or line.runs[0].label
