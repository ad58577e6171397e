"""What a person sees of a run: one live line in a terminal, sparse lines elsewhere, the result at the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn
from rich.progress import Progress as Bar

SPARSE = 10.0  # seconds between two plain lines about rounds


@dataclass
class Status:
    """The running numbers of the line. Bytes, clients and time count from this start of the run."""

    rounds: int = 0  # in all
    first: int = 0  # rounds of earlier starts
    began: float = 0.0
    done: int = 0
    loss: float | None = None
    score: str = ""
    clients: int = 0
    download: int = 0
    upload: int = 0
    epsilon: float | None = None  # spent so far, where privacy is accounted

    def add(self, row: Mapping[str, Any]) -> None:
        """Count a finished round."""
        self.done = row["step"]
        self.loss = self.loss if row["loss"] is None else row["loss"]
        self.clients += row["sampled"]
        self.download += row["download_bytes"]
        self.upload += row["upload_bytes"]
        self.epsilon = row.get("epsilon")

    def line(self, now: float) -> str:
        """Loss, score, bytes, clients per second, time left."""
        seconds = max(now - self.began, 1e-9)
        left = seconds / max(self.done - self.first, 1) * (self.rounds - self.done)
        parts = (
            "" if self.loss is None else f"loss {self.loss:.4f}",
            self.score,
            "" if self.epsilon is None else f"epsilon {self.epsilon:.3g}",
            f"down {size(self.download)}, up {size(self.upload)}",
            pace(self.clients / seconds),
            f"{duration(left)} left" if left else "",
        )
        return "  ".join(part for part in parts if part)


class Progress:
    """Told of everything by the engine; it shows what helps and changes nothing.

    Progress goes to standard error, the result to standard output. Used in a `with` block, it gives the terminal back
    however the run ends.
    """

    def __init__(
        self,
        progress: Console | None = None,
        result: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.progress, self.result, self.clock = progress or Console(stderr=True), result or Console(), clock
        self.status, self.bar, self.task, self.printed = Status(), _bar(self.progress), TaskID(0), -SPARSE

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def started(self, plan: Mapping[str, Any]) -> None:
        """`plan`: name, rounds (in all), clients, workers, resumed_at (rounds already done, or None)."""
        first = plan["resumed_at"] or 0
        self.status = Status(plan["rounds"], first, self.clock(), done=first)
        resumed = f", going on after round {first}" if first else ""
        workers = f"{plan['workers']} worker{'s' if plan['workers'] > 1 else ''}"
        self.message(f"{plan['name']}: {plan['clients']} clients, {plan['rounds']} rounds{resumed}, {workers}")
        if self.progress.is_terminal:
            self.task = self.bar.add_task("", total=plan["rounds"], completed=first, line="")
            self.bar.start()

    def round_done(self, row: Mapping[str, Any]) -> None:
        """`row`: step (rounds done over all phases), loss (None if nobody trained), sampled (clients), *_bytes."""
        self.status.add(row)
        line = self.status.line(self.clock())
        if self.progress.is_terminal:
            self.bar.update(self.task, completed=row["step"], line=line)
        elif self.clock() - self.printed >= SPARSE or row["step"] == self.status.rounds:
            self.printed = self.clock()
            self.message(f"round {row['step']}/{self.status.rounds}  {line}")

    def evaluated(self, row: Mapping[str, Any]) -> None:
        """`row`: step, split, model, metric, value (None where nothing was scored)."""
        if row["value"] is None:
            return
        model = "" if row["model"] == "global" else f" ({row['model']})"
        self.status.score = f"{row['split']} {row['metric']} {row['value']:.4f}{model}"
        if self.progress.is_terminal:
            self.bar.update(self.task, line=self.status.line(self.clock()))
        self.message(f"after round {row['step']}: {self.status.score}")

    def message(self, text: str) -> None:
        """One line, as it is."""
        self.progress.print(text, highlight=False, markup=False, soft_wrap=True)

    def finished(self, summary: Mapping[str, Any]) -> None:
        """`summary`: the content of summary.json."""
        self._stop()
        for line in report(summary):
            self.result.print(line, highlight=False, markup=False, soft_wrap=True)

    def _stop(self) -> None:
        if self.bar.live.is_started:
            self.bar.stop()


def _bar(console: Console) -> Bar:
    columns = (TextColumn("round"), MofNCompleteColumn(), BarColumn(bar_width=20), TextColumn("{task.fields[line]}"))
    return Bar(*columns, console=console, refresh_per_second=4)


def report(summary: Mapping[str, Any]) -> list[str]:
    """The result in a few lines: status, scores beside baselines, bytes of each direction, where everything lies."""
    rows = []
    for metric, value in summary["final"].items():
        before = summary["initial"].get(metric)
        rows.append((metric, f"{value:.4f}" + ("" if before is None else f" (before the first round {before:.4f})")))
    rows += [(f"baseline {name}", f"{value:.4f}") for name, value in summary["baselines"].items()]
    rows += [(mode, _bytes(summary, mode)) for mode in ("download", "upload", "total")]
    if summary.get("plan"):
        rows.append(("plan", summary["plan"]))
    if "privacy" in summary:
        rows.append(("privacy", _privacy(summary["privacy"])))
    rows.append(("everything is in", summary["folder"]))
    if summary["status"] == "interrupted":
        rows.append(("to go on", "the same command with --resume"))
    width = max(len(name) for name, _ in rows)
    seconds = duration(summary["seconds"]["total"])
    title = f"{summary['name']}: {summary['status']} after {summary['rounds']} rounds in {seconds}"
    return [title, *(f"  {name:<{width}}  {value}" for name, value in rows)]


def _privacy(spent: Mapping[str, Any]) -> str:
    of = "" if spent["limit"] is None else f" of {spent['limit']:g}"
    return f"epsilon {spent['epsilon']:.4g}{of} at delta {spent['delta']:g}; what that means is in privacy.md"


def _bytes(summary: Mapping[str, Any], mode: str) -> str:
    sent, charged = summary["bytes"][mode], summary["charged"][mode]
    return size(sent) + ("" if sent == charged else f" (charged {size(charged)})")


def pace(clients_per_second: float) -> str:
    """Clients in a second or, where they take longer, seconds for one."""
    if 0 < clients_per_second < 0.1:
        return f"{1 / clients_per_second:.1f} s/client"
    return f"{clients_per_second:.1f} clients/s"


def size(count: float) -> str:
    """Bytes for people: kB and MB are powers of 1000, GiB and TiB of 1024."""
    for unit, factor, digits in (("TiB", 2**40, 2), ("GiB", 2**30, 2), ("MB", 10**6, 1), ("kB", 10**3, 1)):
        if count >= factor:
            return f"{count / factor:.{digits}f} {unit}"
    return f"{count:.0f} B"


def duration(seconds: float) -> str:
    """Seconds for people: 4.2 s, 3 min 05 s, 2 h 07 min."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"
