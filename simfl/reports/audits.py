"""Audits of a report: lower bounds on epsilon by canaries, and the claims, over rounds."""

from __future__ import annotations

from collections.abc import Sequence

from simfl.reports.chart import LineSeries, line_chart
from simfl.reports.page import figure, figures
from simfl.reports.results import RunResult
from simfl.runs.folder import AUDIT, JsonObject, read_json

MAX_AUDITS = 6  # runs with a figure


def audit_charts(results: Sequence[RunResult]) -> str:
    """Draw the saved audits of runs; an empty text if there are none."""
    saved = [result for result in results if (result.folder / AUDIT).exists()][:MAX_AUDITS]
    return figures([_chart(result, read_json(result.folder / AUDIT)["canaries"]) for result in saved])


def _chart(result: RunResult, audit: JsonObject) -> str:
    lines: dict[tuple[tuple[float, float], ...], list[str]] = {}  # views with equal claims share a line
    for kind in ("claim", "bound"):
        for view in dict.fromkeys(row["view"] for row in audit["by_round"]):
            own = sorted((row["round"], row[kind]) for row in audit["by_round"] if row["view"] == view)
            lines.setdefault(tuple(own), []).append(f"{kind} ({view})")
    series = [LineSeries(", ".join(names), points) for points, names in lines.items()]
    wrong = [view["view"] for view in audit["views"] if max(view["one_run"], view["gaussian"] or 0.0) > view["claim"]]
    verdict = f"VIOLATED for {', '.join(wrong)}" if wrong else "no bound exceeds its claim"
    note = f"{audit['canaries']} canaries, {audit['included']} of them included; {verdict}"
    level = f"{100 * audit.get('confidence', 0.95):g} %"
    return figure(f"lower bounds on epsilon ({level}): {result.label}", line_chart(series, "rounds", "epsilon"), note)
