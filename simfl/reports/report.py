"""The HTML report on runs and sweeps, one file that needs no network: results, costs, curves, predictions, commands."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from html import escape
from pathlib import Path

import numpy as np

from simfl import files
from simfl.data.base import TRAIN
from simfl.data.partition.heterogeneity import ValueCounts, count_values
from simfl.data.partition.manifest import Partition
from simfl.errors import SimflError
from simfl.evaluation.headlines import TRUTH
from simfl.formatting import format_bytes, format_duration
from simfl.reports.audits import audit_charts
from simfl.reports.best import best_table
from simfl.reports.chart import dot_strips, format_number, heat_map
from simfl.reports.curves import (
    MAX_LINES,
    Axis,
    by_bytes,
    by_deployment_epsilon,
    by_epsilon,
    by_round,
    by_time,
    learning_charts,
    row_label,
    run_curves,
    score_charts,
    varied_settings,
)
from simfl.reports.final_scores import axis_figures, search_figures
from simfl.reports.formats import DIRECTIONS, MARKDOWN, notes
from simfl.reports.page import Section, code, figure, figures, folded, page, table
from simfl.reports.pages import predictions_on_pages
from simfl.reports.results import RunResult, results_of
from simfl.reports.shared_prefixes import runs_that_are_prefixes
from simfl.reports.significance import client_means
from simfl.reports.statistical_tests import SIGNIFICANCE_LEVEL
from simfl.reports.table import SEED, Comparison, ComparisonRow, compare, paired_test
from simfl.reports.table_spec import read_spec
from simfl.reports.time import time_section
from simfl.runs.folder import RUN, SWEEP, JsonObject, read_json
from simfl.runs.manifest import RunManifest
from simfl.runs.tables import TableRow
from simfl.safe_text import printable

MAX_SAMPLES = 8  # predictions
MAX_CLIENTS = 60  # in a strip or a heat map
MAX_PARTITIONS = 6
MAX_VALUES = 40  # columns of a heat map
HIDDEN = (
    "format",
    "experiment_sha256",
    "resumes",
    "clients_per_batch",
    "forked",
)  # parts of a manifest that the report leaves out

ROUNDS = Axis("rounds", by_round, format_number)
BYTES = Axis("sent in both directions", by_bytes, format_bytes)
TIME = Axis("virtual time", by_time, format_duration)
EPSILON = Axis("epsilon", by_epsilon, format_number)
DEPLOYMENT_EPSILON = Axis("epsilon of the simulated deployment, not of the run", by_deployment_epsilon, format_number)


def write(paths: Sequence[Path], target: Path, title: str = "", against: str | None = None, pages: bool = False) -> str:
    """Write the report on these runs and sweeps, and return its HTML.

    Args:
        paths: Folders of runs and sweeps.
        target: Path of the HTML file.
        title: Title of the page; by default the names of the folders.
        against: The row that others are tested against; by default that of the sweep, else the first.
        pages: Whether predictions are drawn on their pages, for which the data are read.

    Raises:
        RunError: A folder holds neither a run nor a sweep, or files of another format.
    """
    results, search = results_of(paths), _search(paths)
    title = title or ", ".join(path.name for path in paths)
    text = printable(report(results, title, against or read_spec(paths).against, search, pages))
    files.write(target, lambda file: file.write(text.encode()))
    return text


def _search(paths: Sequence[Path]) -> JsonObject | None:
    """Return the description of the search in a folder; None for anything else."""
    path = paths[0] / SWEEP
    return read_json(path).get("search") if len(paths) == 1 and path.exists() else None


def report(
    results: Sequence[RunResult],
    title: str,
    against: str | None = None,
    search: JsonObject | None = None,
    pages: bool = False,
) -> str:
    """Return the HTML of the report.

    Args:
        results: The runs.
        title: Title of the page.
        against: The row that others are tested against; by default the first.
        search: Description of the search whose trials the runs are.
        pages: Whether predictions are drawn on their pages.
    """
    comparison = compare(
        results, [str(search["metric"])] if search and _has(results, search) else (), against, paired_test
    )
    rows = _shown_rows(comparison, search)
    curves = {run.label: run_curves(run) for row in rows for run in row.done}
    drawn = _without_prefixes(rows)
    clients_note = "Each client's mean score at the end; the bar is the median."
    sections = [
        Section("Search", search_figures(results, search) if search else ""),
        Section("Comparison", _comparison(comparison), tuple(notes(comparison))),
        Section("Best of each method", *best_table(comparison)),
        Section("Final scores", axis_figures(comparison)),
        Section("Learning", learning_charts(comparison, drawn, curves, ROUNDS)),
        Section("Bytes", score_charts(comparison, drawn, curves, BYTES)),
        Section("Virtual time", score_charts(comparison, drawn, curves, TIME)),
        Section("Privacy", score_charts(comparison, drawn, curves, EPSILON)),
        Section("Privacy of a simulated deployment", score_charts(comparison, drawn, curves, DEPLOYMENT_EPSILON)),
        Section("Privacy audit", audit_charts(results)),
        Section("Clients", _client_scores(comparison, rows), (clients_note,)),
        Section("Partition", _partitions(rows)),
        Section("Time", time_section(results)),
        Section("Predictions", _samples(comparison, rows)),
        Section("Pages", predictions_on_pages(rows[0].done[0]) if pages and rows else ""),
        Section("Commands", _commands(results)),
    ]
    done = sum(len(row.done) for row in comparison.rows)
    return page(title, _lead(len(results), done), sections)


def _has(results: Sequence[RunResult], search: JsonObject) -> bool:
    return any(search["metric"] in result.scores for result in results)


def _shown_rows(comparison: Comparison, search: JsonObject | None) -> list[ComparisonRow]:
    """Return the rows that have ended well; of a search, the best ones that fit into one chart."""
    rows = [row for row in comparison.rows if row.done]
    if search is None:
        return rows
    sign = 1.0 if search["direction"] == "maximize" else -1.0
    scored = [row for row in rows if search["metric"] in row.scores]
    return sorted(scored, key=lambda row: -sign * row.scores[search["metric"]].mean)[:MAX_LINES]


def _lead(runs: int, done: int) -> str:
    if runs == 1:
        return "one run, finished" if done else "one run, not finished yet"
    return f"{runs} runs, all finished" if done == runs else f"{runs} runs, {done} of them finished"


def _without_prefixes(rows: Sequence[ComparisonRow]) -> list[ComparisonRow]:
    """Leave out rows whose runs are prefixes of others: in a grid over rounds, the longest run has their curves."""
    prefixes = runs_that_are_prefixes([run for row in rows for run in row.done])
    return [row for row in rows if not all(run.label in prefixes for run in row.done)]


def _comparison(comparison: Comparison) -> str:
    settings = comparison.settings or ("run",)
    header = [*settings, "seeds", *comparison.metrics, "download", "upload", "time"]
    lines = []
    for i, row in enumerate(comparison.rows):
        cells = [escape(str(value)) for value in row.varied.values()] or [escape(row.runs[0].label)]
        cells.append(f"{len(row.done)} of {len(row.runs)}" if len(row.done) < len(row.runs) else f"{len(row.done)}")
        cells += [_score(comparison, row, i, metric) for metric in comparison.metrics]
        for direction in DIRECTIONS:
            count = row.mean_of("bytes", direction)
            cells.append("" if count is None else format_bytes(count))
        seconds = row.mean_of("seconds", "total")
        lines.append([*cells, "" if seconds is None else format_duration(seconds)])
    return table(header, lines, len(settings), html=True)


def _score(comparison: Comparison, row: ComparisonRow, index: int, metric: str) -> str:
    score = row.scores.get(metric)
    if score is None:
        return f'<span class="tag">{escape(row.runs[0].status)}</span>' if not row.done else ""
    text = f"{score.mean:.4f}" + ("" if score.deviation is None else f" ± {score.deviation:.4f}")
    text = f"<b>{text}</b>" if index in comparison.best(metric) else text
    text += ' <span class="tag">stopped</span>' if any(run.status == "stopped" for run in row.done) else ""
    title = "" if score.p is None else f' title="p = {score.p:.4f}"'
    mark = MARKDOWN.mark if score.p is not None and score.p < SIGNIFICANCE_LEVEL else ""
    return f"<span{title}>{text}{mark}</span>{_scored_clients(row, metric)}"


def _scored_clients(row: ComparisonRow, metric: str) -> str:
    """Return how many clients a mean over clients is of; empty for other scores."""
    name = metric.partition(":")[0]
    counts = sorted(
        {run.summary["scored_clients"].get(name) for run in row.done if run.summary.get("scored_clients")} - {None}
    )
    if not counts:
        return ""
    total = max(run.summary["clients"] for run in row.done)
    return f" <small>{'–'.join(str(n) for n in dict.fromkeys((counts[0], counts[-1])))} of {total} clients</small>"


def _client_scores(comparison: Comparison, rows: Sequence[ComparisonRow]) -> str:
    """Draw the scores of each row's clients, of its first seed."""
    varied = varied_settings(comparison.settings, rows)
    charts = []
    scores = {row.runs[0].label: client_means(row.done[0].run) for row in rows}
    for metric in comparison.metrics:
        groups = []
        for row in rows:
            values = list(scores[row.runs[0].label].get(metric, {}).values())
            if len(values) > 1:
                groups.append((", ".join(str(row.varied[name]) for name in varied) or row.runs[0].label, values))
        first = rows[0].done[0].varied if rows else {}
        seed = f", seed {first[SEED]}" if SEED in first else ""
        names = f"{', '.join(varied)}{seed}".lstrip(", ")
        charts.append(figure(f"{metric} of each client", dot_strips(groups, metric), names) if groups else "")
    return figures([chart for chart in charts if chart])


def _partitions(rows: Sequence[ComparisonRow]) -> str:
    """Draw each distinct partition: examples by client and value, and by client and group."""
    charts: dict[str, str] = {}
    for row in rows:
        result = row.done[0]
        key = result.run.manifest.partition_sha256
        if key not in charts and len(charts) < MAX_PARTITIONS:
            charts[key] = _partition(result)
    return figures([chart for chart in charts.values() if chart])


def _partition(result: RunResult) -> str:
    partition = result.run.stored_partition
    counts = _value_counts(result)
    if counts is None:
        sizes = ", ".join(str(n) for n in partition.sizes[:MAX_CLIENTS])
        return figure(f"{len(partition)} clients", f"<p>examples: {sizes}</p>", "values of the data are not known here")
    heat = np.array(counts.heat, np.int64)[:MAX_CLIENTS, :MAX_VALUES]
    names, columns = [f"client {k}" for k in range(len(heat))], list(counts.values[:MAX_VALUES])
    chart = heat_map(names, columns, heat, f"examples by client and {counts.column}")
    sizes = f"{_span(partition.sizes)} examples each"
    divergence = f"mean Jensen-Shannon divergence of a client from all examples: {counts.mean_divergence:.3f}"
    by_value = figure(f"{len(partition)} clients by {counts.column}", chart, f"{sizes}; {divergence}")
    return by_value + _by_group(partition)


def _value_counts(result: RunResult) -> ValueCounts | None:
    """Return the counts that the run stored; for a run of an older simfl they are made from its data, if here."""
    if result.run.has_value_counts:
        return result.run.value_counts
    try:
        return count_values(result.whole_run.context.split(TRAIN), result.whole_run.partition)
    except (SimflError, OSError):  # the data are not on this machine, or no longer those of the run
        return None


def _by_group(partition: Partition) -> str:
    """Draw the examples of each client in each group, such as a provider; empty without groups."""
    held = [partition.groups(client) for client in range(min(len(partition), MAX_CLIENTS))]
    totals: dict[str, int] = {}
    for name, rows in (pair for own in held for pair in own):
        totals[name] = totals.get(name, 0) + len(rows)
    if len(totals) < 2:
        return ""
    names = sorted(totals, key=lambda name: (-totals[name], name))[:MAX_VALUES]
    values = np.array([[sum(len(rows) for g, rows in own if g == name) for name in names] for own in held])
    chart = heat_map([f"client {k}" for k in range(len(held))], names, values, "examples by client and group")
    left_out = f"; the {len(names)} largest are shown" if len(names) < len(totals) else ""
    note = f"{_span(partition.num_groups)} groups each, {len(totals)} of the clients drawn{left_out}"
    return figure(f"{len(partition)} clients by group", chart, note)


def _span(numbers: np.ndarray) -> str:
    """Return the smallest and the largest of some numbers, or the one that all are equal to."""
    low, high = numbers.min(), numbers.max()
    return str(low) if low == high else f"{low} to {high}"


def _samples(comparison: Comparison, rows: Sequence[ComparisonRow]) -> str:
    """Return a table of the last predictions of each row's first run, next to the true answers."""
    varied = varied_settings(comparison.settings, rows)
    columns: dict[str, dict[tuple[str, int], str]] = {}
    examples: dict[tuple[str, int], TableRow] = {}
    for row in rows[:MAX_LINES]:
        samples = row.done[0].run.samples().to_pylist()
        last = max((sample["step"] for sample in samples), default=0)
        for sample in samples:
            if sample["step"] == last:
                key = sample["split"], sample["row"]
                examples.setdefault(key, sample)
                columns.setdefault(row_label(row, varied), {})[key] = _prediction(sample)
    keys = list(examples)[:MAX_SAMPLES]
    truth = [name for name in TRUTH if any(examples[key].get(name) is not None for key in keys)]
    lines = [
        [_cell(examples[key].get(name)) for name in truth] + [column.get(key, "") for column in columns.values()]
        for key in keys
    ]
    return table([*truth, *columns], lines, len(truth) + len(columns)) if keys else ""


def _prediction(sample: TableRow) -> str:
    """Format a prediction; further outputs of the model follow in brackets."""
    found = {k.removeprefix("predicted_"): v for k, v in sample.items() if k.startswith("predicted_") and v is not None}
    if not found:
        return ""
    (_, prediction), *others = found.items()
    if not others:
        return _cell(prediction)
    return f"{_cell(prediction)} ({', '.join(f'{name} {_cell(value)}' for name, value in others)})"


def _cell(value: object) -> str:
    if isinstance(value, float):
        return format_number(value)
    return "; ".join(str(item) for item in value) if isinstance(value, list) else "" if value is None else str(value)


def _commands(results: Sequence[RunResult]) -> str:
    parts = []
    for result in results:
        path = result.folder / RUN
        if not path.exists():
            continue
        manifest = {k: v for k, v in RunManifest.read(result.folder).to_json().items() if k not in HIDDEN}
        command = shlex.join(["simfl", "run", str(path), "--out", f"{result.folder.name}-again"])
        inner = code(command) + code(json.dumps(manifest, indent=1)) + code(path.read_text())
        parts.append(folded(f"{result.label}: {result.status}", inner))
    return "".join(parts)
