"""Runs and sweeps as one HTML file that needs no network: what they reached, what it cost, and how it went."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from simfl import evaluation, files
from simfl.data.partition.heterogeneity import measure
from simfl.errors import SimflError
from simfl.formatting import format_bytes, format_duration
from simfl.reports.chart import heat, number, strips
from simfl.reports.curves import MOST_LINES, by_bytes, by_epsilon, by_round, course, curves, name_of, varied
from simfl.reports.formats import MARK, WAYS, notes
from simfl.reports.page import Section, code, figure, figures, folded, page, table
from simfl.reports.results import Result, results_of
from simfl.reports.shared_prefixes import longest_prefixes
from simfl.reports.significance import per_client
from simfl.reports.table import LEVEL, SEED, Comparison, Line, compare, paired
from simfl.reports.table_spec import wanted
from simfl.reports.time import timeline

MOST_SAMPLES = 8  # predictions shown
MADE = (
    "simfl",
    "python",
    "libraries",
    "machine",
    "data_sha256",
    "partition_sha256",
    "identity",
    "choices",
)  # shown of a manifest
MOST_CLIENTS = 60  # in a strip or a map
MOST_PARTITIONS = 6  # shown
MOST_VALUES = 40  # columns of a map


def write(paths: Sequence[Path], target: Path, title: str = "") -> None:
    """The report on these runs and sweeps. RunError where nothing lies, or nothing has ended yet."""
    text = report(results_of(paths), title or ", ".join(path.name for path in paths), wanted(paths).against)
    files.write(target, lambda file: file.write(text.encode()))


def report(results: Sequence[Result], title: str, against: str | None = None) -> str:
    """The report's HTML; other lines are held `against` this one, by default the first."""
    found = compare(results, against=against, test=paired)
    shown = [line for line in found.lines if line.done]
    courses = {run.label: course(run) for line in shown for run in line.done}
    metrics, drawn = found.metrics, _longest(shown)
    sections = [
        Section("Comparison", _comparison(found), tuple(notes(found))),
        Section("Learning", curves(found, drawn, courses, metrics, by_round, "rounds", number)),
        Section("Bytes", curves(found, drawn, courses, metrics, by_bytes, "sent in both directions", format_bytes)),
        Section("Privacy", curves(found, drawn, courses, metrics, by_epsilon, "epsilon", number)),
        Section(
            "Clients", _spread(found, shown, metrics), ("Each client's mean score at the end; the bar is the median.",)
        ),
        Section("Partition", _partitions(shown)),
        Section("Time", timeline(results)),
        Section("Predictions", _samples(found, shown)),
        Section("Commands", _commands(results)),
    ]
    done = sum(len(line.done) for line in found.lines)
    return page(title, _lead(len(results), done), sections)


def _lead(runs: int, done: int) -> str:
    if runs == 1:
        return "one run, done" if done else "one run, not done yet"
    return f"{runs} runs, all of them done" if done == runs else f"{runs} runs, {done} of them done"


def _longest(shown: Sequence[Line]) -> list[Line]:
    """The lines that are not the beginning of another: of a grid over T, one curve tells all."""
    runs = {run.label: run.run.experiment for line in shown for run in line.done}
    shorter = set(longest_prefixes(runs).values())
    return [line for line in shown if not all(run.label in shorter for run in line.done)]


def _comparison(found: Comparison) -> str:
    settings = found.settings or ("run",)
    header = [*settings, "seeds", *found.metrics, "download", "upload", "time"]
    rows = []
    for i, line in enumerate(found.lines):
        cells = [escape(str(value)) for value in line.shown.values()] or [escape(line.runs[0].label)]
        cells.append(
            f"{len(line.done)} of {len(line.runs)}" if len(line.done) < len(line.runs) else f"{len(line.done)}"
        )
        cells += [_score(found, line, i, metric) for metric in found.metrics]
        for mode in WAYS:
            count = line.mean_of("bytes", mode)
            cells.append("" if count is None else format_bytes(count))
        seconds = line.mean_of("seconds", "total")
        rows.append([*cells, "" if seconds is None else format_duration(seconds)])
    return table(header, rows, len(settings), html=True)


def _score(found: Comparison, line: Line, index: int, metric: str) -> str:
    score = line.scores.get(metric)
    if score is None:
        return f'<span class="tag">{line.runs[0].status}</span>' if not line.done else ""
    text = f"{score.mean:.4f}" + ("" if score.deviation is None else f" ± {score.deviation:.4f}")
    text = f"<b>{text}</b>" if index in found.best(metric) else text
    title = "" if score.p is None else f' title="p = {score.p:.4f}"'
    return f"<span{title}>{text}{MARK if score.p is not None and score.p < LEVEL else ''}</span>"


def _spread(found: Comparison, shown: Sequence[Line], metrics: Sequence[str]) -> str:
    told = varied(found.settings, shown)
    charts = []
    scores = {line.runs[0].label: per_client(line.done[0].run) for line in shown}
    for metric in metrics:
        groups = []
        for line in shown:
            values = list(scores[line.runs[0].label].get(metric, {}).values())
            if len(values) > 1:
                groups.append((", ".join(str(line.shown[name]) for name in told) or line.runs[0].label, values))
        seed = f", seed {shown[0].done[0].shown[SEED]}" if SEED in shown[0].done[0].shown else ""
        names = f"{', '.join(told)}{seed}".lstrip(", ")
        charts.append(figure(f"{metric} of each client", strips(groups, metric), names) if groups else "")
    return figures([chart for chart in charts if chart])


def _partitions(shown: Sequence[Line]) -> str:
    """Each partition once: examples by client and value."""
    charts: dict[str, str] = {}
    for line in shown:
        run = line.done[0]
        key = run.run.manifest["partition_sha256"]
        if key not in charts and len(charts) < MOST_PARTITIONS:
            charts[key] = _partition(run)
    return figures([chart for chart in charts.values() if chart])


def _partition(run: Result) -> str:
    partition = run.run.stored_partition
    try:
        split = run.run.setting.split("train")
        numbers = measure(split, run.run.partition)
    except (SimflError, OSError):  # the data are not on this machine, or no longer those of the run
        sizes = ", ".join(str(n) for n in partition.sizes[:MOST_CLIENTS])
        return figure(f"{len(partition)} clients", f"<p>examples: {sizes}</p>", "the data are not on this machine")
    shown = min(len(partition), len(numbers.heat), MOST_CLIENTS)
    rows, columns = [f"client {k}" for k in range(shown)], [str(value) for value in numbers.values[:MOST_VALUES]]
    chart = heat(rows, columns, numbers.heat[:shown, :MOST_VALUES], f"examples by client and {numbers.column}")
    sizes = f"{partition.sizes.min()} to {partition.sizes.max()} examples each"
    apart = f"mean Jensen-Shannon divergence of a client from all examples: {numbers.divergence.mean():.3f}"
    return figure(f"{len(partition)} clients by {numbers.column}", chart, f"{sizes}; {apart}")


def _samples(found: Comparison, shown: Sequence[Line]) -> str:
    """What each line's first run said to the same rows, beside what is true."""
    told = varied(found.settings, shown)
    columns: dict[str, dict[tuple[str, int], str]] = {}
    asked: dict[tuple[str, int], dict[str, Any]] = {}
    for line in shown[:MOST_LINES]:
        rows = line.done[0].run.samples().to_pylist()
        last = max((row["step"] for row in rows), default=0)
        for row in rows:
            if row["step"] == last:
                key = row["split"], row["row"]
                asked.setdefault(key, row)
                columns.setdefault(name_of(line, told), {})[key] = _said(row)
    keys = list(asked)[:MOST_SAMPLES]
    truth = [name for name in evaluation.TRUTH if any(asked[key].get(name) is not None for key in keys)]
    rows_ = [
        [_cell(asked[key].get(name)) for name in truth] + [said.get(key, "") for said in columns.values()]
        for key in keys
    ]
    return table([*truth, *columns], rows_, len(truth) + len(columns)) if keys else ""


def _said(row: dict[str, Any]) -> str:
    """A prediction, and in brackets what else the model said of it."""
    found = {k.removeprefix("predicted_"): v for k, v in row.items() if k.startswith("predicted_") and v is not None}
    if not found:
        return ""
    (_, said), *others = found.items()
    return f"{_cell(said)} ({', '.join(f'{k} {_cell(v)}' for k, v in others)})" if others else _cell(said)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return number(value)
    return "; ".join(str(item) for item in value) if isinstance(value, list) else "" if value is None else str(value)


def _commands(results: Sequence[Result]) -> str:
    parts = []
    for run in results:
        path = run.folder / "experiment.yaml"
        if not path.exists():
            continue
        made = json.loads((run.folder / "manifest.json").read_bytes())
        facts = {key: made[key] for key in MADE if key in made}
        command = f"simfl run {path} --out {run.folder.name}-again"
        inner = code(command) + code(json.dumps(facts, indent=1)) + code(path.read_text())
        parts.append(folded(f"{run.label}: {run.status}", inner))
    return "".join(parts)
