"""Learning curves of a report: scores and losses over rounds, bytes and epsilon, one line per setting."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from simfl.evaluation.headlines import headlines
from simfl.reports.chart import LineSeries, line_chart
from simfl.reports.labels import differing, short_label
from simfl.reports.page import figure, figures
from simfl.reports.results import RunResult
from simfl.reports.table import Comparison, ComparisonRow
from simfl.runs.tables import VIRTUAL_TIME, TableRow

METRIC = "metric:"  # prefix of the columns of `rounds.parquet` that an algorithm reports
LAYER = "/"  # in the name of a metric: separates it from a layer
MAX_LINES = 8  # in one chart; more could not be told apart


@dataclass(frozen=True)
class RunCurves:
    """Bytes and scores of a run after each round; `step` is the number of finished rounds."""

    bytes: dict[int, int]  # step -> sent so far
    epsilon: dict[int, float]  # step -> spent so far; empty without privacy
    scores: dict[str, dict[int, float]]  # by name, as in summaries
    loss: dict[int, float]
    metrics: dict[str, dict[int, float]] = field(default_factory=dict)  # values that the algorithm reports, by name
    deployment_epsilon: dict[int, float] = field(default_factory=dict)  # of the deployment that a run simulates
    seconds: dict[int, float] = field(default_factory=dict)  # step -> virtual time; empty without profiles
    joules: dict[int, float] = field(default_factory=dict)  # step -> energy of computing so far


@dataclass(frozen=True)
class Axis:
    """The x axis of a chart of scores."""

    label: str
    points: Callable[[RunCurves, str], dict[float, float]]  # curves and metric -> x -> value
    format: Callable[[float], str]


def run_curves(result: RunResult) -> RunCurves:
    """Return the curves of a run."""
    rows = result.run.rounds().to_pylist()
    sent, total = {0: 0}, 0
    for row in rows:
        total += row["total_bytes"]
        sent[row["step"]] = total
    epsilon, deployment_epsilon = (
        {row["step"]: row[name] for row in rows if row.get(name) is not None}
        for name in ("epsilon", "deployment_epsilon")
    )
    first, by_step = result.run.settings["evaluate"]["splits"][0], dict[int, list[TableRow]]()
    for row in result.run.evaluations().to_pylist():
        by_step.setdefault(row["step"], []).append(row)
    scores: dict[str, dict[int, float]] = {}
    for step, found in by_step.items():
        for name, value in headlines(found, first).items():
            scores.setdefault(name, {})[step] = value.value
    loss = {row["step"]: row["loss"] for row in rows if row["loss"] is not None}
    metrics: dict[str, dict[int, float]] = {}
    for row in rows:
        for column, value in row.items():
            if column.startswith(METRIC) and value is not None:
                metrics.setdefault(column.removeprefix(METRIC), {})[row["step"]] = value
    time = {row["step"]: row[VIRTUAL_TIME] for row in rows if row.get(VIRTUAL_TIME) is not None}
    has_energy = any(row.get("time:joules") is not None for row in rows)  # asynchronous rounds have none
    energy, joules = {0: 0.0} if has_energy else {}, 0.0
    for row in rows if has_energy else []:
        joules += row.get("time:joules") or 0.0
        energy[row["step"]] = joules
    return RunCurves(sent, epsilon, scores, loss, metrics, deployment_epsilon, {0: 0.0, **time} if time else {}, energy)


def by_round(curves: RunCurves, metric: str) -> dict[float, float]:
    """Return a score by round."""
    return {float(step): value for step, value in curves.scores.get(metric, {}).items()}


def by_bytes(curves: RunCurves, metric: str) -> dict[float, float]:
    """Return a score by bytes sent so far."""
    return {float(curves.bytes[s]): v for s, v in curves.scores.get(metric, {}).items() if s in curves.bytes}


def by_time(curves: RunCurves, metric: str) -> dict[float, float]:
    """Return a score by virtual seconds."""
    return {curves.seconds[s]: v for s, v in curves.scores.get(metric, {}).items() if s in curves.seconds}


def by_epsilon(curves: RunCurves, metric: str) -> dict[float, float]:
    """Return a score by epsilon spent so far."""
    return {curves.epsilon[s]: v for s, v in curves.scores.get(metric, {}).items() if s in curves.epsilon}


def by_deployment_epsilon(curves: RunCurves, metric: str) -> dict[float, float]:
    """Return a score by the epsilon of the deployment that a run simulates."""
    spent = curves.deployment_epsilon
    return {spent[s]: v for s, v in curves.scores.get(metric, {}).items() if s in spent}


def score_charts(
    comparison: Comparison, rows: Sequence[ComparisonRow], curves: Mapping[str, RunCurves], axis: Axis
) -> str:
    """Draw a chart for each metric; many rows are divided among several charts by the first settings that vary.

    Args:
        comparison: The comparison, whose metrics are drawn.
        rows: The rows to draw.
        curves: The curves of each run by its label.
        axis: The x axis.
    """
    charts = [chart for metric in comparison.metrics for chart in _charts(comparison, rows, curves, metric, axis)]
    return figures(charts)


def learning_charts(
    comparison: Comparison, rows: Sequence[ComparisonRow], curves: Mapping[str, RunCurves], axis: Axis
) -> str:
    """Draw the charts of `score_charts`, followed by the training loss and the algorithm's own metrics by round."""
    charts = [chart for metric in comparison.metrics for chart in _charts(comparison, rows, curves, metric, axis)]
    losses = replace(axis, points=lambda one, _: {float(step): value for step, value in one.loss.items()})
    charts += _charts(comparison, rows, curves, "loss", losses, "training loss")
    reported = replace(axis, points=lambda one, name: {float(s): v for s, v in one.metrics.get(name, {}).items()})
    names = dict.fromkeys(name for one in curves.values() for name in one.metrics)
    for name in (name for name in names if LAYER not in name):
        charts += _charts(comparison, rows, curves, name, reported)
    for prefix in dict.fromkeys(name.partition(LAYER)[0] for name in names if LAYER in name):
        charts += _layer_charts(comparison, rows, curves, prefix, axis)
    return figures(charts)


def _layer_charts(
    comparison: Comparison, rows: Sequence[ComparisonRow], curves: Mapping[str, RunCurves], prefix: str, axis: Axis
) -> Iterator[str]:
    """Draw a chart for each row with the layers in which a metric is largest, each a mean over the seeds."""
    varied = varied_settings(comparison.settings, rows)
    for row in rows:
        found: dict[str, dict[int, list[float]]] = {}
        for run in row.done:
            for name, values in curves[run.label].metrics.items():
                if name.startswith(prefix + LAYER):
                    layer = found.setdefault(name.partition(LAYER)[2], {})
                    for step, value in values.items():
                        layer.setdefault(step, []).append(value)
        means = {layer: {step: fmean(values) for step, values in own.items()} for layer, own in found.items()}
        largest = sorted(means, key=lambda layer: -fmean(means[layer].values()))[:MAX_LINES]
        series = [LineSeries(layer, sorted((float(s), v) for s, v in means[layer].items())) for layer in largest]
        title = f"{prefix} of the layers where it is largest"
        if chart := figure(f"{title}, {row_label(row, varied)}", line_chart(series, axis.label, prefix, axis.format)):
            yield chart


def _charts(
    comparison: Comparison,
    rows: Sequence[ComparisonRow],
    curves: Mapping[str, RunCurves],
    metric: str,
    axis: Axis,
    title: str = "",
) -> Iterator[str]:
    for values, group, varied in split_into_charts(comparison.settings, rows):
        series = [_series(row, varied, curves, metric, axis) for row in group]
        chart = figure(", ".join([title or metric, *values]), line_chart(series, axis.label, metric, axis.format))
        if chart:
            yield chart


def split_into_charts(
    settings: Sequence[str], rows: Sequence[ComparisonRow]
) -> Iterator[tuple[list[str], list[ComparisonRow], tuple[str, ...]]]:
    """Divide rows into groups of at most 8 where possible; yield each group's title, rows and varying settings."""
    names = varied_settings(settings, rows)
    for count in range(len(names) + 1):
        groups: dict[tuple[str, ...], list[ComparisonRow]] = {}
        for row in rows:
            groups.setdefault(tuple(str(row.varied[name]) for name in names[:count]), []).append(row)
        if all(len(group) <= MAX_LINES for group in groups.values()) or count == max(len(names) - 1, 0):
            break
    for values, group in groups.items():
        title = [f"{name} {value}" for name, value in zip(names[:count], values, strict=True)]
        yield title, group, tuple(names[count:])


def varied_settings(settings: Sequence[str], rows: Sequence[ComparisonRow]) -> tuple[str, ...]:
    """Return the settings in which these rows differ; of trials of a search, the name of the trial alone."""
    found = differing([row.varied for row in rows])
    return tuple(name for name in settings if name in found)


def row_label(row: ComparisonRow, settings: Sequence[str]) -> str:
    """Label a row by its values of these settings: texts alone, numbers after the name of the setting."""
    return short_label(row.varied, settings, row.runs[0].label)


def _series(
    row: ComparisonRow, varied: Sequence[str], curves: Mapping[str, RunCurves], metric: str, axis: Axis
) -> LineSeries:
    """Return the mean over the seeds, where all have a value, and their range."""
    found = [axis.points(curves[run.label], metric) for run in row.done]
    common = sorted(set.intersection(*(set(one) for one in found))) if found else []
    points = [(x, fmean(one[x] for one in found)) for x in common]
    band = [(x, min(one[x] for one in found), max(one[x] for one in found)) for x in common] if len(found) > 1 else []
    return LineSeries(row_label(row, varied), points, band)
