"""Final scores in a report: over each swept setting, and over the trials of a search."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import accumulate
from statistics import mean

from simfl.reports.chart import Dot, LineSeries, dot_strips, format_number, line_chart, scatter_chart
from simfl.reports.curves import MAX_LINES
from simfl.reports.labels import short_label
from simfl.reports.page import figure, figures, table
from simfl.reports.results import TRIAL, RunResult
from simfl.reports.table import SEED, Comparison, ComparisonRow
from simfl.runs.folder import JsonObject

MAX_METRICS = 3  # metrics that are drawn over each setting
LOG_RATIO = 30.0  # of the largest to the smallest value of a setting, from which its axis is logarithmic


def axis_figures(comparison: Comparison) -> str:
    """Draw the final scores over each setting that varies: lines over numbers, strips of dots for names."""
    rows = [row for row in comparison.rows if any(run.status == "completed" for run in row.done)]
    settings = [name for name in differing_settings(rows) if name not in (TRIAL, "run", "sweep")]
    drawn = [
        figure(f"{metric} over {name}", *_over_setting(rows, name, settings, metric))
        for metric in comparison.metrics[:MAX_METRICS]
        for name in settings
    ]
    return figures([one for one in drawn if one])


def differing_settings(rows: Sequence[ComparisonRow]) -> tuple[str, ...]:
    """Return the settings in which rows differ, the seed left out."""
    names = dict.fromkeys(name for row in rows for name in row.varied)
    return tuple(n for n in names if n != SEED and len({str(row.varied.get(n)) for row in rows}) > 1)


def _over_setting(rows: Sequence[ComparisonRow], name: str, settings: Sequence[str], metric: str) -> tuple[str, str]:
    """Return the chart of a metric over a setting, and its note."""
    scored = [row for row in rows if metric in row.scores]
    values = [row.varied.get(name) for row in scored]
    if len({str(value) for value in values}) < 2:
        return "", ""
    if not all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in values):
        return _strips(scored, name, metric), "Each dot is a setting; the bar is the median."
    others = [other for other in settings if other != name]
    series = list(_lines(scored, name, others, metric))
    if len(series) <= MAX_LINES and all(len(one.points) > 1 for one in series):
        numbers = [x for one in series for x, _ in one.points]
        return line_chart(series, name, metric, log=is_log(numbers)), "Means over seeds; bands are their range."
    dots = [
        Dot(float(str(row.varied[name])), row.scores[metric].mean, short_label(row.varied, settings, row.runs[0].label))
        for row in scored
    ]
    return scatter_chart(dots, name, metric, log=is_log([dot.x for dot in dots])), "Each dot is a run or setting."


def is_log(values: Sequence[float]) -> bool:
    """Return whether values are drawn on a logarithmic axis."""
    return min(values) > 0 and max(values) / min(values) >= LOG_RATIO


def _strips(rows: Sequence[ComparisonRow], name: str, metric: str) -> str:
    groups: dict[str, list[float]] = {}
    for row in rows:
        groups.setdefault(str(row.varied.get(name)), []).append(row.scores[metric].mean)
    return dot_strips(list(groups.items()), metric)


def _lines(rows: Sequence[ComparisonRow], name: str, others: Sequence[str], metric: str) -> Iterator[LineSeries]:
    """Yield a line for each combination of the other settings."""
    found: dict[tuple[str, ...], list[ComparisonRow]] = {}
    for row in rows:
        found.setdefault(tuple(str(row.varied.get(other)) for other in others), []).append(row)
    for members in found.values():
        ordered = sorted(members, key=lambda row: float(str(row.varied[name])))
        points = [(float(str(row.varied[name])), mean(row.scores[metric].values)) for row in ordered]
        ranges = [
            (x, min(s), max(s)) for (x, _), s in zip(points, (r.scores[metric].values for r in ordered), strict=True)
        ]
        has_seeds = any(len(row.scores[metric].values) > 1 for row in ordered)
        yield LineSeries(short_label(members[0].varied, others, metric), points, ranges if has_seeds else ())


def search_figures(results: Sequence[RunResult], search: JsonObject) -> str:
    """Draw the score of each trial of a search with the best so far, and list the best trial and importances."""
    name, sign = str(search["metric"]), 1.0 if search["direction"] == "maximize" else -1.0
    scored = [(number, result) for number, result in enumerate(results) if name in result.scores]
    if not scored:
        return ""
    dots = [
        Dot(float(number), result.scores[name], result.label, hollow=result.status != "completed")
        for number, result in scored
    ]
    done = [(dot.x, sign * dot.y) for dot in dots if not dot.hollow]
    best = list(zip([x for x, _ in done], (sign * v for v in accumulate((v for _, v in done), max)), strict=True))
    chart = scatter_chart(dots, "trial", name, line=best)
    note = "The line is the best score so far; hollow dots are trials that the pruner has ended."
    return figures([figure("Score of each trial", chart, note), *_importance(search.get("importance") or {})]) + _best(
        results, search
    )


def _importance(shares: Mapping[str, float]) -> list[str]:
    rows = [[name, f"{share:.0%}"] for name, share in sorted(shares.items(), key=lambda item: -item[1])]
    note = "Share of the variation among good trials (PED-ANOVA, Watanabe et al. 2023)."
    return [figure("Importance of each setting", table(["setting", "importance"], rows), note)] if rows else []


def _best(results: Sequence[RunResult], search: JsonObject) -> str:
    """Return a sentence on the best trial."""
    found = next((result for result in results if result.varied.get(TRIAL) == search.get("best")), None)
    if found is None:
        return ""
    settings = ", ".join(f"{name} {value}" for name, value in found.varied.items() if name != TRIAL)
    score = format_number(found.scores[str(search["metric"])])
    return f"<p>Best: {escape(found.label)}, {escape(str(search['metric']))} {score}, with {escape(settings)}.</p>"
