"""A report's time: when runs were under mode, where their time went, and when workers were at work."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from simfl.reports.chart import Bar, Series, bars, lines, number
from simfl.reports.page import figure, figures, table
from simfl.reports.results import Result
from simfl.tracking.progress import duration
from simfl.tracking.watch import Log

MOST_LINES = 8  # in one chart
MOST_LOGS = 2  # runs of which it is told
AT_WORK = "A worker's time at work in each round, drawn from the round's beginning."
MOST_ROWS = 40  # of a chart
LEAST = 0.001  # seconds in all of a kind of work that is shown


def timeline(results: Sequence[Result]) -> str:
    """Of several runs, when each was under way; of one, where each round's time went."""
    logs = {
        run.label: list(Log(run.folder / "log.jsonl").lines()) for run in results if (run.folder / "log.jsonl").exists()
    }
    sittings = [bar for label, log in logs.items() for bar in _sittings(label, log)]
    if not sittings:
        return ""
    began = min(bar.begin for bar in sittings)
    shifted = [Bar(bar.row, bar.begin - began, bar.end - began, bar.name, bar.colour) for bar in sittings]
    kept = list(dict.fromkeys(bar.row for bar in shifted))[:MOST_ROWS]
    charts = []
    if len(kept) > 1:
        chart = bars([bar for bar in shifted if bar.row in kept], "time since the first began")
        charts.append(figure("When each run was under way", chart))
    first = [(f": {label}" if len(logs) > 1 else "", log) for label, log in list(logs.items())[:MOST_LOGS]]
    charts += [figure(f"Where the time went{of}", _stages(log)) for of, log in first]
    charts += [figure(f"Workers{of}", _workers(log), AT_WORK) for of, log in first]
    charts += [figure(f"Workers in all rounds{of}", _totals(log)) for of, log in first]
    charts += [figure(f"{title}{of}", chart) for of, log in first for title, chart in _use(log)]
    return figures([chart for chart in charts if chart])


def _sittings(label: str, log: Sequence[dict[str, Any]]) -> Iterator[Bar]:
    begun = last = None
    for line in log:
        if line["event"] == "started":
            if begun is not None and last is not None:
                yield Bar(label, begun, last, f"{label}: {duration(last - begun)}")
            begun = line["time"] - line.get("startup_seconds", 0.0)
        last = line["time"]
    if begun is not None and last is not None:
        yield Bar(label, begun, last, f"{label}: {duration(last - begun)}")


def _stages(log: Sequence[dict[str, Any]]) -> str:
    """Seconds of each kind of work, all rounds together."""
    spent: dict[str, float] = {}
    for line in log:
        for name, seconds in line.get("timings", {}).items() if line["event"] == "round" else ():
            spent[name] = spent.get(name, 0.0) + seconds
    shown = sorted(((name, s) for name, s in spent.items() if s >= LEAST), key=lambda item: -item[1])
    made = [Bar(f"{name}  {duration(s)}", 0.0, s, f"{name}: {duration(s)}") for name, s in shown]
    return bars(made, "all workers and the driver together") if made else ""


def _workers(log: Sequence[dict[str, Any]]) -> str:
    """Each worker's share of each round's time at work, from its beginning; what is left it waited."""
    rounds = [line for line in log if line["event"] == "round" and line.get("busy")]
    if not rounds or max(len(line["busy"]) for line in rounds) < 2:
        return ""
    began, made = _ended(rounds[0]) - rounds[0]["seconds"], []
    for line in rounds:
        first = _ended(line) - line["seconds"] - began
        for worker, seconds in enumerate(line["busy"][:MOST_ROWS]):
            end = first + min(seconds, line["seconds"])
            made.append(
                Bar(f"worker {worker}", first, end, f"round {line['step']}: {duration(seconds)} at work", worker)
            )
    return bars(made, "time since the first round began")


def _ended(line: dict[str, Any]) -> float:
    """When a round's stretch of time ended: before its line was written, if its scores were waited for later."""
    return float(line.get("ended", line["time"]))


def _totals(log: Sequence[dict[str, Any]]) -> str:
    """Each worker's hours in all rounds since it joined: at work, and idle."""
    rounds = [line for line in log if line["event"] == "round" and line.get("busy")]
    rows = []
    for worker in range(min(MOST_ROWS, max((len(line["busy"]) for line in rounds), default=0))):
        here = [line for line in rounds if len(line["busy"]) > worker]
        whole, busy = (sum(line["seconds"] for line in here), sum(line["busy"][worker] for line in here))
        idle = sum(max(0.0, line["seconds"] - line["busy"][worker]) for line in here)
        share = f"{min(1.0, busy / whole):.0%}" if whole else ""
        rows.append([str(worker), str(len(here)), duration(busy), duration(idle), share])
    return table(["worker", "rounds", "at work", "idle", "share"], rows) if rows else ""


def _use(log: Sequence[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """By round: each worker's share at work, the use of its GPU where that is known, its memory at its highest."""
    rounds = [line for line in log if line["event"] == "round" and line.get("memory")]
    if len(rounds) < 2:
        return
    count = min(max(len(line["memory"]) for line in rounds), MOST_LINES)
    use = [_course(rounds, w, lambda line, w: min(1.0, line["busy"][w] / line["seconds"])) for w in range(count)]
    memory = [_course(rounds, w, lambda line, w: line["memory"][w] / 1e9) for w in range(count)]
    gpus = [_course(rounds, w, _gpu) for w in range(count)]
    yield "Share of each round at work", lines(use, "rounds", "share", number)
    yield "Use of each worker's GPU", lines(gpus, "rounds", "share of the time", number)
    yield "Memory of GPU or process at its highest", lines(memory, "rounds", "GB", number)


def _gpu(line: dict[str, Any], worker: int) -> float | None:
    use = line.get("use", ())
    return use[worker] if worker < len(use) else None


def _course(
    rounds: Sequence[dict[str, Any]], worker: int, value: Callable[[dict[str, Any], int], float | None]
) -> Series:
    """A worker's line, from the round in which it joined; where a value is not known there is no point."""
    here = [line for line in rounds if len(line["memory"]) > worker]
    found = [(float(line["step"]), value(line, worker)) for line in here]
    return Series(f"worker {worker}", [(step, v) for step, v in found if v is not None])
