"""A run seen from outside, while it goes on or afterwards: its `log.jsonl` read as it grows, shown in the terminal."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from statistics import mean
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from simfl.tracking.progress import Status, duration, report, size
from simfl.tracking.run_folder import require_run

SILENT = 60.0  # seconds without a word after which a run may be dead
EVERY = 0.5  # seconds between two looks at the log
BARS = "▁▂▃▄▅▆▇█"
SHORT = 0.05  # seconds of a round that are not worth a word
SAID = 5  # messages shown
NUMBERS = ("round", "started", "evaluated", "finished")  # events that are not messages


@dataclass
class View:
    """What the log has said so far."""

    plan: dict[str, Any] = field(default_factory=dict)
    status: Status = field(default_factory=Status)
    phase: int = 0
    ended: str = ""  # completed, interrupted, failed; empty while the run goes on
    last: float = 0.0  # when the log last spoke
    losses: dict[int, float] = field(default_factory=dict)  # by round of the run
    scores: dict[str, dict[int, float]] = field(default_factory=dict)  # by name, by round of the run
    times: dict[str, float] = field(default_factory=dict)  # seconds of the last round by what they went to
    workers: str = ""  # what they made of their machines in the last round
    said: list[str] = field(default_factory=list)

    def hear(self, line: Mapping[str, Any]) -> None:
        """One line of the log."""
        self.last = line["time"]
        match line["event"]:
            case "started":
                self._started(line)
            case "round":
                self.status.add(line)
                self.phase = line["phase"]
                self.times = {name: s for name, s in line.get("timings", {}).items() if s >= SHORT}
                self.workers = _workers(line)
                if line["loss"] is not None:
                    self.losses[line["step"]] = line["loss"]
            case "evaluated" if line["value"] is not None:
                name = line["metric"] if line["model"] == "global" else f"{line['metric']} ({line['model']})"
                self.scores.setdefault(f"{line['split']} {name}", {})[line["step"]] = line["value"]
            case "finished":
                self.ended = line["status"]
        if line["event"] not in NUMBERS:
            self.said = [*self.said, _message(line)][-SAID:]

    def _started(self, line: Mapping[str, Any]) -> None:
        """A sitting begins; what a killed one did after its last commit does not count."""
        first = line["resumed_at"] or 0
        self.plan, self.ended = dict(line), ""
        self.status = Status(line["rounds"], first, line["time"], done=first)
        self.losses = {step: loss for step, loss in self.losses.items() if step <= first}
        self.scores = {name: {s: v for s, v in values.items() if s <= first} for name, values in self.scores.items()}

    def state(self, now: float) -> str:
        """In a word: waiting, running, silent, or how it ended."""
        if not self.plan:
            return "starting"
        if self.ended:
            return self.ended
        silent = now - self.last
        return "running" if silent < SILENT else f"no word for {duration(silent)}; it may be dead"


def _workers(line: Mapping[str, Any]) -> str:
    """Means over the workers, but the largest of their memories, and their idle seconds together."""
    if not line.get("busy") or not line.get("seconds"):
        return ""
    known = [use for use in line.get("use", ()) if use is not None]
    gpus = [f"GPUs computed {mean(known):.0%} of the time"] if known else []
    memory = [f"up to {size(max(line['memory']))} each"] if any(line.get("memory", ())) else []
    shares = [min(1.0, busy / line["seconds"]) for busy in line["busy"]]
    least = f", the least {min(shares):.0%}" if len(shares) > 1 else ""
    idle = sum(max(0.0, line["seconds"] - busy) for busy in line["busy"])
    return ", ".join([f"at work {mean(shares):.0%}{least}, {duration(idle)} idle in all", *gpus, *memory])


def _message(line: Mapping[str, Any]) -> str:
    rest = {key: value for key, value in line.items() if key not in ("time", "event")}
    return f"{line['event']}: " + (str(rest["text"]) if "text" in rest else json.dumps(rest))


class Log:
    """A `log.jsonl` that may still grow."""

    def __init__(self, path: Path) -> None:
        self.path, self.read, self.rest = path, 0, b""

    def lines(self) -> Iterator[dict[str, Any]]:
        """The whole lines written since the last look; a line that is not JSON, cut off by a crash, is passed over."""
        with open(self.path, "rb") as file:
            file.seek(self.read)
            new = file.read()
        self.read += len(new)
        *whole, self.rest = (self.rest + new).split(b"\n")
        for line in whole:
            try:
                yield json.loads(line)
            except ValueError:
                continue


def watch(folder: Path, once: bool, console: Console | None = None, every: float = EVERY) -> str:
    """Show the run until it ends, or `once`; returns its state. RunError if no run lies there."""
    require_run(folder)
    console = console or Console()
    view, log = View(), Log(folder / "log.jsonl")
    if once or not console.is_terminal:
        _look(view, log)
        console.print(picture(view, folder, time.time()))
        return view.state(time.time())
    with Live(console=console, auto_refresh=False) as live:
        while True:
            _look(view, log)
            live.update(picture(view, folder, time.time()), refresh=True)
            if view.ended:
                return view.ended
            time.sleep(every)


def _look(view: View, log: Log) -> None:
    if log.path.exists():
        for line in log.lines():
            view.hear(line)


def picture(view: View, folder: Path, now: float) -> RenderableType:
    """The whole view; of an ended run, its result too."""
    title = Text(f"{view.plan.get('name', folder.name)}: {view.state(now)}", style="bold")
    if not view.plan:
        return title
    plan, status = view.plan, view.status
    began = datetime.fromtimestamp(status.began).strftime("%H:%M:%S")
    resumed = f", going on after round {status.first}" if status.first else ""
    title.append(f"   {plan['clients']} clients, {plan['workers']} workers, since {began}{resumed}", style="not bold")
    lines: list[RenderableType] = [title, _bar(view)]
    lines.append(Text(status.line(now if not view.ended else view.last)))
    lines.append(_curves(view))
    if view.times:
        lines.append(Text("last round: " + ", ".join(f"{name} {duration(s)}" for name, s in view.times.items())))
    if view.workers:
        lines.append(Text(f"workers: {view.workers}"))
    lines += [Text(text) for text in view.said]
    if view.ended:
        lines += [Text(line) for line in _result(folder)]
    return Group(*lines)


def _bar(view: View) -> RenderableType:
    row = Table.grid(padding=(0, 1))
    phase = f", phase {view.phase}" if view.phase else ""
    bar = ProgressBar(total=view.status.rounds, completed=view.status.done, width=40)
    row.add_row(f"round {view.status.done} of {view.status.rounds}{phase}", bar)
    return row


def _curves(view: View) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    for name, values in {"loss": view.losses, **view.scores}.items():
        if values:
            first, last = (values[step] for step in (min(values), max(values)))
            table.add_row(name, sparkline(list(values.values())), f"{first:.4f} to {last:.4f}")
    return table


def _result(folder: Path) -> list[str]:
    try:
        return report(json.loads((folder / "summary.json").read_bytes()))
    except (OSError, ValueError):
        return ["there is no readable summary.json"]


def sparkline(values: list[float], width: int = 40) -> str:
    """The values as bars between their least and their greatest; of many, evenly chosen ones, the last among them."""
    if len(values) > width:
        values = [values[round(i * (len(values) - 1) / (width - 1))] for i in range(width)]
    low, high = min(values), max(values)
    steps = [(v - low) / (high - low) if high > low else 0.0 for v in values]
    return "".join(BARS[min(int(s * len(BARS)), len(BARS) - 1)] if s == s else " " for s in steps)
