"""`simfl watch`: follow a run from another process by reading its `log.jsonl` as it grows."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from statistics import mean

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from simfl.errors import DamagedFile
from simfl.formatting import format_bytes, format_duration
from simfl.json_files import JsonLines
from simfl.runs.folder import CHECKPOINTS, LOG, JsonObject, require_run
from simfl.runs.summary import read_summary, summary_lines
from simfl.tracking.console import SafeConsole
from simfl.tracking.progress import ProgressStatus

SILENT_SECONDS = 60.0  # time without a log line after which a run may have died
POLL_SECONDS = 0.5  # time between two reads of the log
SPARK_BARS = "▁▂▃▄▅▆▇█"
MIN_SECONDS = 0.05  # activities of a round that take less are not shown
MAX_MESSAGES = 5
MAX_SHOWN = 200  # characters of an error
PROGRESS_EVENTS = ("round", "started", "evaluated", "finished")  # all other events are shown as messages


DAMAGE = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, OSError, RecursionError)


@contextmanager
def refused_damage(name: object) -> Iterator[None]:
    """Turn an error that content of a wrong form causes within the block into a DamagedFile of one line."""
    try:
        yield
    except DAMAGE as error:
        raise DamagedFile(f"{name}: damaged: {type(error).__name__} {str(error)[:MAX_SHOWN]}") from None


def score_key(split: str, model: str, metric: str) -> str:
    """Return the name of a score in a display: `valid anls`, `valid anls (personal)`."""
    return f"{split} {metric}" if model == "global" else f"{split} {metric} ({model})"


@dataclass
class RunView:
    """The state of a run according to its log."""

    plan: JsonObject = field(default_factory=dict)  # the event `started`
    status: ProgressStatus = field(default_factory=ProgressStatus)
    phase: int = 0
    ended: str = ""  # completed, interrupted or failed; empty while the run is in progress
    last: float = 0.0  # time of the newest log line
    losses: dict[int, float] = field(default_factory=dict)  # by round of the run
    scores: dict[str, dict[int, float]] = field(default_factory=dict)  # by name, by round of the run
    times: dict[str, float] = field(default_factory=dict)  # seconds of the last round by activity
    last_round: JsonObject = field(default_factory=dict)  # the newest event `round`
    messages: list[str] = field(default_factory=list)

    def update(self, line: JsonObject) -> None:
        """Apply one line of the log.

        Raises:
            DamagedFile: The line is none that a run writes.
        """
        with refused_damage(LOG):
            self._apply(line)

    def _apply(self, line: JsonObject) -> None:
        self.last = float(line["time"])
        match line["event"]:
            case "started":
                self._start(line)
            case "round":
                self.status.add(line)
                self.phase = line["phase"]
                self.times = {name: s for name, s in line.get("timings", {}).items() if s >= MIN_SECONDS}
                self.last_round = line
                if line["loss"] is not None:
                    self.losses[int(line["step"])] = float(line["loss"])
            case "evaluated" if line["value"] is not None:
                name = score_key(line["split"], line["model"], line["metric"])
                self.scores.setdefault(name, {})[int(line["step"])] = float(line["value"])
            case "finished":
                self.ended = str(line["status"])
        if line["event"] not in PROGRESS_EVENTS:
            self.messages = [*self.messages, _message(line)][-MAX_MESSAGES:]

    @property
    def workers(self) -> str:
        """Utilization of the workers in the last round."""
        return _utilization(self.last_round)

    def _start(self, line: JsonObject) -> None:
        """Start or resume; rounds that a killed process finished after its last checkpoint are dropped."""
        first = line["resumed_at"] or 0
        self.plan, self.ended = dict(line), ""
        self.status = ProgressStatus(line["rounds"], first, line["time"], done=first)
        self.losses = {step: loss for step, loss in self.losses.items() if step <= first}
        self.scores = {name: {s: v for s, v in values.items() if s <= first} for name, values in self.scores.items()}

    def state(self, now: float) -> str:
        """Describe the state: starting, running, silent for some time, or how the run ended."""
        if not self.plan:
            return "starting"
        if self.ended:
            return self.ended
        silent = now - self.last
        return "running" if silent < SILENT_SECONDS else f"no log line for {format_duration(silent)}; it may have died"


def _utilization(line: JsonObject) -> str:
    """Format how busy the workers were: means over the workers, the largest memory, and the sum of idle seconds."""
    if not line.get("busy") or not line.get("seconds"):
        return ""
    known = [use for use in line.get("use", ()) if use is not None]
    gpus = [f"GPUs computed {mean(known):.0%} of the time"] if known else []
    memory = [f"up to {format_bytes(max(line['memory']))} each"] if any(line.get("memory", ())) else []
    shares = [min(1.0, busy / line["seconds"]) for busy in line["busy"]]
    least = f" (least {min(shares):.0%})" if len(shares) > 1 else ""
    idle = sum(max(0.0, line["seconds"] - busy) for busy in line["busy"])
    return ", ".join([f"busy {mean(shares):.0%}{least}, {format_duration(idle)} idle in total", *gpus, *memory])


def _message(line: JsonObject) -> str:
    rest = {key: value for key, value in line.items() if key not in ("time", "event")}
    return f"{line['event']}: " + (str(rest["text"]) if "text" in rest else json.dumps(rest))


def watch(
    folder: Path,
    once: bool,
    console: Console | None = None,
    every: float = POLL_SECONDS,
    refresh: Callable[[], object] = lambda: None,
) -> str:
    """Show a run until it ends, and return its state.

    Args:
        folder: The run folder.
        once: Show the current state and return; also outside of a terminal.
        console: Where to show it.
        every: Seconds between two reads of the log.
        refresh: Called before each read but the first, to update the copy of a URL.

    Raises:
        DamagedFile: The log or the summary was altered.
        RunError: The folder holds no run, or one whose files have another format.
    """
    require_run(folder)
    console = console or SafeConsole()
    if once or not console.is_terminal:
        view = current_view(folder)
        console.print(_render(view, folder))
        return view.state(time.time())
    view, log = RunView(), JsonLines(folder / LOG)
    with Live(console=console, auto_refresh=False) as live:
        while True:
            _read(view, log)
            live.update(_render(view, folder), refresh=True)
            if view.ended:
                return view.ended
            time.sleep(every)
            refresh()


def current_view(folder: Path) -> RunView:
    """Return the state of a run according to its whole log; a last line that a crash cut off is a message.

    Raises:
        DamagedFile: The log is missing or was altered.
    """
    view, log = RunView(), JsonLines(folder / LOG)
    if not log.path.exists() and (folder / CHECKPOINTS).exists():
        raise DamagedFile(f"{log.path}: this file is missing")
    _read(view, log)
    if cut_off := log.cut_off():
        view.messages.append(cut_off)
    return view


def _render(view: RunView, folder: Path) -> RenderableType:
    with refused_damage(folder):
        return render(view, folder, time.time())


def _read(view: RunView, log: JsonLines) -> None:
    for line in log.lines():
        view.update(line)


def render(view: RunView, folder: Path, now: float) -> RenderableType:
    """Render the state of a run; of a run that has ended, its summary too."""
    title = Text(f"{view.plan.get('name', folder.name)}: {view.state(now)}", style="bold")
    if not view.plan:
        return title
    plan, status = view.plan, view.status
    began = datetime.fromtimestamp(status.began).strftime("%H:%M:%S")
    resumed = f", resumed after round {status.first}" if status.first else ""
    title.append(f"   {plan['clients']} clients, {plan['workers']} workers, since {began}{resumed}", style="not bold")
    lines: list[RenderableType] = [title, _bar(view)]
    lines.append(Text(status.line(now if not view.ended else view.last)))
    lines.append(_curves(view))
    if view.times:
        times = ", ".join(f"{name} {format_duration(s)}" for name, s in view.times.items())
        lines.append(Text(f"last round: {times}"))
    if view.workers:
        lines.append(Text(f"workers: {view.workers}"))
    lines += [Text(text) for text in view.messages]
    if view.ended:
        lines += [Text(line) for line in _summary(folder)]
    return Group(*lines)


def _bar(view: RunView) -> RenderableType:
    row = Table.grid(padding=(0, 1))
    phase = f", phase {view.phase}" if view.phase else ""
    bar = ProgressBar(total=view.status.rounds, completed=view.status.done, width=40)
    row.add_row(f"round {view.status.done} of {view.status.rounds}{phase}", bar)
    return row


def _curves(view: RunView) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    for name, values in {"loss": view.losses, **view.scores}.items():
        if values:
            first, last = (values[step] for step in (min(values), max(values)))
            table.add_row(name, sparkline(list(values.values())), f"{first:.4f} to {last:.4f}")
    return table


def _summary(folder: Path) -> list[str]:
    summary = read_summary(folder)
    return ["there is no summary.json"] if summary is None else summary_lines(summary)


def sparkline(values: list[float], width: int = 40) -> str:
    """Draw the values as bars between their minimum and maximum; of many, evenly spaced ones and the last."""
    if len(values) > width:
        values = [values[round(i * (len(values) - 1) / (width - 1))] for i in range(width)]
    low, high = min(values), max(values)
    steps = [(v - low) / (high - low) if high > low else 0.0 for v in values]
    return "".join(SPARK_BARS[min(int(s * len(SPARK_BARS)), len(SPARK_BARS) - 1)] if s == s else " " for s in steps)
