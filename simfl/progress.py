"""What a person sees of a run: one live line in a terminal, sparse lines elsewhere, the result at the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn
from rich.progress import Progress as Bar

SPARSE = 10.0  # seconds between two plain lines about rounds


class Progress:
    """Told of everything by the engine; it shows what helps and changes nothing.

    Progress goes to standard error, the result to standard output. `show=False` is silent.
    """

    def __init__(
        self,
        show: bool = True,
        progress: Console | None = None,
        result: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.progress = progress or Console(stderr=True, quiet=not show)
        self.result = result or Console(quiet=not show)
        self.clock = clock
        self.plan: Mapping[str, Any] = {}
        self.status = Status()
        self.bar: Bar | None = None
        self.task = TaskID(0)
        self.printed = -SPARSE

    def started(self, plan: Mapping[str, Any]) -> None:
        """`plan`: name, rounds (in all), done (rounds of an earlier start), clients, workers, backend, out (folder)."""
        self.plan, self.status = plan, Status(rounds=plan["rounds"], done=plan.get("done", 0), began=self.clock())
        self.status.first = self.status.done
        resumed = f", from round {self.status.done}" if self.status.done else ""
        places = "this process" if plan["backend"] == "inline" else f"{plan['workers']} Ray workers"
        self.message(f"{plan['name']}: {plan['clients']} clients, {plan['rounds']} rounds{resumed}, {places}")
        if self.progress.is_terminal and not self.progress.quiet:
            self.bar = _bar(self.progress)
            self.task = self.bar.add_task("", total=plan["rounds"], completed=self.status.done, line="")
            self.bar.start()

    def round_done(self, row: Mapping[str, Any]) -> None:
        """`row`: round (counted over all phases), loss (None if nobody trained), clients, download, upload (bytes)."""
        self.status.add(row)
        if self.bar:
            self.bar.update(self.task, completed=row["round"], line=self.status.line(self.clock()))
        elif self.clock() - self.printed >= SPARSE or row["round"] == self.status.rounds:
            self.printed = self.clock()
            self.message(f"round {row['round']}/{self.status.rounds}  {self.status.line(self.clock())}")

    def evaluated(self, row: Mapping[str, Any]) -> None:
        """`row`: round, split, model, metric, value."""
        self.status.score = f"{row['split']} {row['metric']} {row['value']:.4f}"
        model = "" if row["model"] == "generic" else f" {row['model']}"
        if self.bar:
            self.bar.update(self.task, line=self.status.line(self.clock()))
        self.message(f"round {row['round']}{model}  {self.status.score}")

    def message(self, text: str) -> None:
        """One line, as it is."""
        self.progress.print(text, highlight=False, markup=False, soft_wrap=True)

    def finished(self, summary: Mapping[str, Any]) -> None:
        """`summary`: the content of summary.json."""
        self.close()
        for line in report(summary, str(self.plan.get("out", ""))):
            self.result.print(line, highlight=False, markup=False, soft_wrap=True)

    def close(self) -> None:
        """Give the terminal back; called by `finished`, and by the engine when a run fails."""
        if self.bar:
            self.bar.stop()
            self.bar = None


class Status:
    """The running numbers of the line."""

    def __init__(self, rounds: int = 0, done: int = 0, began: float = 0.0) -> None:
        self.rounds, self.done, self.began = rounds, done, began
        self.first = done
        self.loss: float | None = None
        self.score = ""
        self.clients = self.download = self.upload = 0

    def add(self, row: Mapping[str, Any]) -> None:
        """Count a finished round."""
        self.done = row["round"]
        self.loss = row["loss"] if row["loss"] is not None else self.loss
        self.clients += row["clients"]
        self.download += row["download"]
        self.upload += row["upload"]

    def line(self, now: float) -> str:
        """Loss, score, bytes since this start, clients per second, time left."""
        seconds = max(now - self.began, 1e-9)
        left = seconds / max(self.done - self.first, 1) * (self.rounds - self.done)
        parts = [
            "" if self.loss is None else f"loss {self.loss:.4f}",
            self.score,
            f"down {size(self.download)}, up {size(self.upload)}",
            f"{self.clients / seconds:.1f} clients/s",
            f"{duration(left)} left" if left else "",
        ]
        return "  ".join(part for part in parts if part)


def _bar(console: Console) -> Bar:
    columns = (TextColumn("round"), MofNCompleteColumn(), BarColumn(bar_width=20), TextColumn("{task.fields[line]}"))
    return Bar(*columns, console=console, refresh_per_second=4)


def report(summary: Mapping[str, Any], out: str) -> list[str]:
    """The result in a few lines: status, scores beside baselines, bytes of each direction, where everything lies."""
    seconds, sent = summary["seconds"], summary["bytes"]
    lines = [f"{summary['name']}: {summary['status']} after {summary['rounds']} rounds, {duration(seconds['total'])}"]
    rows = [(f"final {name}", f"{value:.4f}") for name, value in summary["final"].items()]
    rows += [(f"baseline {name}", f"{value:.4f}") for name, value in summary["baselines"].items()]
    rows += [(way, size(sent[way])) for way in ("download", "upload", "total")]
    if summary.get("charged", sent) != sent:
        rows.append(("charged", size(summary["charged"]["total"])))
    rows.append(("weights", summary["weights_sha256"][:16]))
    if out:
        rows.append(("everything is in", out))
    width = max(len(name) for name, _ in rows)
    return lines + [f"  {name:<{width}}  {value}" for name, value in rows]


def size(count: float) -> str:
    """Bytes for people: B, kB and MB are powers of 1000, GiB and TiB of 1024."""
    for unit, factor, digits in (("TiB", 2**40, 2), ("GiB", 2**30, 2), ("MB", 10**6, 1), ("kB", 10**3, 1)):
        if count >= factor:
            return f"{count / factor:.{digits}f} {unit}"
    return f"{count:.0f} B"


def duration(seconds: float) -> str:
    """Seconds for people: 4.2 s, 3 min 05 s, 2 h 07 min."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"
