"""Progress display of a run: a live line in a terminal, occasional lines elsewhere, the summary at the end."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn
from rich.progress import Progress as Bar

from simfl.formatting import format_bytes, format_duration, format_rate
from simfl.runs.folder import JsonObject
from simfl.runs.summary import summary_lines
from simfl.runs.tables import TableRow
from simfl.tracking.console import SafeConsole

LINE_SECONDS = 10.0  # least time between two plain lines about rounds


@dataclass
class ProgressStatus:
    """Running numbers of the progress line. Bytes, clients and time count from the last start of the run."""

    rounds: int = 0  # of the whole run
    first: int = 0  # rounds that were finished before this start
    began: float = 0.0  # clock time of this start, in seconds
    done: int = 0  # finished rounds
    loss: float | None = None
    score: str = ""
    clients: int = 0
    download: int = 0  # bytes
    upload: int = 0  # bytes
    epsilon: float | None = None  # spent so far; None without privacy
    deployment_epsilon: float | None = None  # of the deployment that the run simulates, which has no epsilon then

    def add(self, row: TableRow) -> None:
        """Count a finished round; `row` is its row of `rounds.parquet`."""
        self.done = row["step"]
        self.loss = self.loss if row["loss"] is None else row["loss"]
        self.clients += row["sampled"]
        self.download += row["download_bytes"]
        self.upload += row["upload_bytes"]
        self.epsilon = row.get("epsilon")
        self.deployment_epsilon = row.get("deployment_epsilon")

    def line(self, now: float) -> str:
        """Format loss, score, bytes, clients per second and the estimated time left."""
        seconds = max(now - self.began, 1e-9)
        left = seconds / max(self.done - self.first, 1) * (self.rounds - self.done)
        parts = (
            "" if self.loss is None else f"loss {self.loss:.4f}",
            self.score,
            "" if self.epsilon is None else f"epsilon {self.epsilon:.3g}",
            "" if self.deployment_epsilon is None else f"epsilon of the deployment {self.deployment_epsilon:.3g}",
            f"down {format_bytes(self.download)}, up {format_bytes(self.upload)}",
            format_rate(self.clients / seconds),
            f"{format_duration(left)} left" if left else "",
        )
        return "  ".join(part for part in parts if part)


class Progress:
    """A display of a run, with the methods of `simfl.session.callbacks.NullDisplay`.

    Progress goes to standard error, the summary to standard output. As a context manager it restores the terminal
    however the run ends.
    """

    def __init__(
        self,
        progress: Console | None = None,
        result: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take the consoles for progress and for the summary, and a clock in seconds."""
        self.progress, self.result, self.clock = progress or SafeConsole(stderr=True), result or SafeConsole(), clock
        self.status, self.bar, self.task, self.printed = ProgressStatus(), _bar(self.progress), TaskID(0), -LINE_SECONDS

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def started(self, plan: JsonObject) -> None:
        """Show that the run starts or resumes.

        Args:
            plan: `name`, `rounds` (of the whole run), `clients`, `workers`, and `resumed_at`: the number of finished
                rounds of a resumed run, or None.
        """
        first = plan["resumed_at"] or 0
        self.status = ProgressStatus(plan["rounds"], first, self.clock(), done=first)
        resumed = f", resumed after round {first}" if first else ""
        workers = f"{plan['workers']} worker{'s' if plan['workers'] > 1 else ''}"
        self.message(f"{plan['name']}: {plan['clients']} clients, {plan['rounds']} rounds{resumed}, {workers}")
        if self.progress.is_terminal:
            self.task = self.bar.add_task("", total=plan["rounds"], completed=first, line="")
            self.bar.start()

    def round_done(self, row: TableRow) -> None:
        """Show a finished round; `row` is its row of `rounds.parquet`."""
        self.status.add(row)
        line = self.status.line(self.clock())
        if self.progress.is_terminal:
            self.bar.update(self.task, completed=row["step"], line=line)
        elif self.clock() - self.printed >= LINE_SECONDS or row["step"] == self.status.rounds:
            self.printed = self.clock()
            self.message(f"round {row['step']}/{self.status.rounds}  {line}")

    def evaluated(self, row: TableRow) -> None:
        """Show a headline score: `step`, `split`, `model`, `metric`, `value`; of clients' models also `clients`."""
        over = f", mean over {row['clients']} clients" if "clients" in row else ""
        model = "" if row["model"] == "global" else f" ({row['model']}{over})"
        self.status.score = f"{row['split']} {row['metric']} {row['value']:.4f}{model}"
        if self.progress.is_terminal:
            self.bar.update(self.task, line=self.status.line(self.clock()))
        self.message(f"after round {row['step']}: {self.status.score}")

    def message(self, text: str) -> None:
        """Show a line of text without markup."""
        self.progress.print(text, highlight=False, markup=False, soft_wrap=True)

    def finished(self, summary: JsonObject) -> None:
        """Show the summary."""
        self._stop()
        for line in summary_lines(summary):
            self.result.print(line, highlight=False, markup=False, soft_wrap=True)

    def _stop(self) -> None:
        if self.bar.live.is_started:
            self.bar.stop()


def _bar(console: Console) -> Bar:
    columns = (TextColumn("round"), MofNCompleteColumn(), BarColumn(bar_width=20), TextColumn("{task.fields[line]}"))
    return Bar(*columns, console=console, refresh_per_second=4)
