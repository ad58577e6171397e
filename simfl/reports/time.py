"""The time section of a report: when runs were in progress, what took the time, and how busy the workers were."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape

from simfl.formatting import format_bytes, format_duration
from simfl.json_files import JsonLines
from simfl.reports.chart import Bar, LineSeries, bar_chart, format_number, line_chart, stacked_bars
from simfl.reports.labels import run_names
from simfl.reports.page import figure, figures, table
from simfl.reports.results import RunResult
from simfl.runs.folder import LOG, JsonObject

LogLines = Sequence[JsonObject]

MAX_LINES = 8  # in one chart
MAX_LOGS = 2  # runs up to which the workers of each are shown in detail
WAITING = "queue"  # activity: the driver waits for workers, whose own activities are counted
MAX_ROWS = 40  # of a chart
MAX_PARTS, OTHER_PARTS = 6, "other"  # activities of a bar
MAX_BARS = 200  # runs in one chart
MIN_SECONDS = 0.001  # activities that take less in total are left out
WORKERS_NOTE = "Each worker's busy time in each round, drawn from the start of the round."


def time_section(results: Sequence[RunResult]) -> str:
    """Draw when each of several runs was in progress, where its time went, and how busy its workers were."""
    names, settings = run_names(results)
    readers = {name: JsonLines(result.folder / LOG) for name, result in zip(names, results, strict=True)}
    logs = {label: lines for label, log in readers.items() if (lines := list(log.lines()))}
    remarks = [line for log in readers.values() if (line := log.cut_off())]
    missing = [run for name, run in zip(names, results, strict=True) if run.summary and name not in logs]
    remarks += [f"{run.folder / LOG}: this file is missing" for run in missing]
    notes = "".join(f"<p>{escape(line)}</p>" for line in remarks)
    sessions = [bar for label, log in logs.items() for bar in _sessions(label, log)]
    if not sessions:
        return notes
    began = min(bar.begin for bar in sessions)
    shifted = [Bar(bar.row, bar.begin - began, bar.end - began, bar.name, bar.colour) for bar in sessions]
    shown = list(dict.fromkeys(bar.row for bar in shifted))[:MAX_ROWS]
    charts = []
    if len(shown) > 1:
        chart = bar_chart([bar for bar in shifted if bar.row in shown], "time since the first run started")
        charts.append(figure("Time of each run", chart, ", ".join(settings)))
    detailed = [(f": {label}" if len(logs) > 1 else "", log) for label, log in logs.items() if len(logs) <= MAX_LOGS]
    charts.append(_where_time_went(logs))
    charts += [figure(f"Workers{suffix}", _busy_times(log), WORKERS_NOTE) for suffix, log in detailed]
    charts += [figure(f"Workers in all rounds{suffix}", _worker_totals(log)) for suffix, log in detailed]
    charts += [figure(f"{title}{suffix}", chart) for suffix, log in detailed for title, chart in _utilization(log)]
    return notes + figures([chart for chart in charts if chart]) + _workers_of_runs(logs)


def _workers_of_runs(logs: Mapping[str, LogLines]) -> str:
    """Return a table of the workers of each run: how many, how busy, and their largest memory; empty for few runs."""
    rows = []
    for name, log in logs.items() if len(logs) > MAX_LOGS else ():
        rounds = [line for line in log if line["event"] == "round" and line.get("busy")]
        if rounds:
            busy = sum(sum(line["busy"]) for line in rounds)
            total = sum(line["seconds"] * len(line["busy"]) for line in rounds)
            memory = max((size for line in rounds for size in line.get("memory", ())), default=0)
            share = f"{min(1.0, busy / total):.0%}" if total else ""
            workers = str(max(len(line["busy"]) for line in rounds))
            rows.append([name, workers, str(len(rounds)), format_duration(busy), share, format_bytes(memory)])
    found = table(["run", "workers", "rounds", "busy", "share", "peak memory"], rows) if rows else ""
    return figure("Workers of each run", found)


def _sessions(label: str, log: LogLines) -> Iterator[Bar]:
    """Yield a bar for each start of a run, until its last log line."""
    begun = last = None
    for line in log:
        if line["event"] == "started":
            if begun is not None and last is not None:
                yield Bar(label, begun, last, f"{label}: {format_duration(last - begun)}")
            begun = line["time"] - line.get("startup_seconds", 0.0)
        last = line["time"]
    if begun is not None and last is not None:
        yield Bar(label, begun, last, f"{label}: {format_duration(last - begun)}")


def _where_time_went(logs: Mapping[str, LogLines]) -> str:
    """Draw the seconds of each activity, summed over all rounds: of one run in a row each, of several in a bar each."""
    spent = {name: _spent(log) for name, log in logs.items()}
    note = "Seconds of the driver and all workers, summed over the rounds."
    if len(spent) == 1:
        (only,) = spent.values()
        made = [
            Bar(f"{name}  {format_duration(s)}", 0.0, s, f"{name}: {format_duration(s)}") for name, s in only.items()
        ]
        return figure("Where time went", bar_chart(made, "driver and all workers, summed") if made else "")
    totals: dict[str, float] = {}
    for name, seconds in (item for one in spent.values() for item in one.items()):
        totals[name] = totals.get(name, 0.0) + seconds
    main = sorted(totals, key=lambda name: -totals[name])[:MAX_PARTS]
    shown = list(spent.items())[:MAX_BARS]
    rows = [(run, _parts(one, main)) for run, one in shown if one]
    left_out = f" The first {len(shown)} of {len(spent)} runs are shown." if len(shown) < len(spent) else ""
    return figure(
        "Where time went", stacked_bars(rows, "driver and all workers, summed") if rows else "", note + left_out
    )


def _spent(log: LogLines) -> dict[str, float]:
    """Return the seconds of each activity, the longest first."""
    spent: dict[str, float] = {}
    for line in log:
        for name, seconds in line.get("timings", {}).items() if line["event"] == "round" else ():
            spent[name] = spent.get(name, 0.0) + (seconds if name != WAITING else 0.0)
    return dict(sorted(((name, s) for name, s in spent.items() if s >= MIN_SECONDS), key=lambda item: -item[1]))


def _parts(spent: Mapping[str, float], main: Sequence[str]) -> dict[str, float]:
    """Return the seconds of the main activities, and of all others together."""
    found = {name: spent[name] for name in main if name in spent}
    others = sum(seconds for name, seconds in spent.items() if name not in main)
    return found | ({OTHER_PARTS: others} if others else {})


def _busy_times(log: LogLines) -> str:
    """Draw each worker's busy time in each round; in the rest of the round it was idle."""
    rounds = [line for line in log if line["event"] == "round" and line.get("busy")]
    if not rounds or max(len(line["busy"]) for line in rounds) < 2:
        return ""
    began, made = _end_time(rounds[0]) - rounds[0]["seconds"], list[Bar]()
    for line in rounds:
        first = _end_time(line) - line["seconds"] - began
        for worker, seconds in enumerate(line["busy"][:MAX_ROWS]):
            end = first + min(seconds, line["seconds"])
            name = f"round {line['step']}: {format_duration(seconds)} busy"
            made.append(Bar(f"worker {worker}", first, end, name, worker))
    return bar_chart(made, "time since the first round started")


def _end_time(line: JsonObject) -> float:
    """Return when a round ended: before its log line was written, if its scores were awaited later."""
    return float(line["ended"] if "ended" in line else line["time"])


def _worker_totals(log: LogLines) -> str:
    """Return a table of each worker's busy and idle time in all rounds since it joined."""
    rounds = [line for line in log if line["event"] == "round" and line.get("busy")]
    rows = []
    for worker in range(min(MAX_ROWS, max((len(line["busy"]) for line in rounds), default=0))):
        here = [line for line in rounds if len(line["busy"]) > worker]
        total, busy = (sum(line["seconds"] for line in here), sum(line["busy"][worker] for line in here))
        idle = sum(max(0.0, line["seconds"] - line["busy"][worker]) for line in here)
        share = f"{min(1.0, busy / total):.0%}" if total else ""
        rows.append([str(worker), str(len(here)), format_duration(busy), format_duration(idle), share])
    return table(["worker", "rounds", "busy", "idle", "share"], rows) if rows else ""


def _utilization(log: LogLines) -> Iterator[tuple[str, str]]:
    """Yield charts by round: each worker's busy share, the utilization of its GPU where known, its peak memory."""
    rounds = [line for line in log if line["event"] == "round" and line.get("memory")]
    if len(rounds) < 2:
        return
    count = min(max(len(line["memory"]) for line in rounds), MAX_LINES)
    busy = [_worker_series(rounds, w, _busy_share) for w in range(count)]
    memory = [_worker_series(rounds, w, lambda line, w: line["memory"][w] / 1e9) for w in range(count)]
    gpus = [_worker_series(rounds, w, _gpu_use) for w in range(count)]
    yield "Busy share of each round", line_chart(busy, "rounds", "share", format_number)
    yield "Utilization of each worker's GPU", line_chart(gpus, "rounds", "share of the time", format_number)
    yield "Peak memory of GPU or process", line_chart(memory, "rounds", "GB", format_number)


def _busy_share(line: JsonObject, worker: int) -> float:
    return min(1.0, float(line["busy"][worker] / line["seconds"]))


def _gpu_use(line: JsonObject, worker: int) -> float | None:
    use = line.get("use", ())
    return use[worker] if worker < len(use) else None


def _worker_series(rounds: LogLines, worker: int, value: Callable[[JsonObject, int], float | None]) -> LineSeries:
    """Return a worker's values from the round in which it joined; unknown values are left out."""
    here = [line for line in rounds if len(line["memory"]) > worker]
    found = [(float(line["step"]), value(line, worker)) for line in here]
    return LineSeries(f"worker {worker}", [(step, v) for step, v in found if v is not None])
