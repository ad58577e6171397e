"""Callbacks of a run: the display, `log.jsonl` and the trackers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from simfl.runs.folder import JsonObject
from simfl.runs.record import Record
from simfl.runs.waiting_rows import Rows
from simfl.safe_text import mask_secrets
from simfl.timing import Lap
from simfl.tracking.events import TrackingEvent
from simfl.tracking.trackers import Tracker


class NullDisplay:
    """A display that shows nothing, and the interface of all displays."""

    def started(self, plan: JsonObject) -> None:
        """Show that the run starts or resumes."""

    def round_done(self, row: JsonObject) -> None:
        """Show a finished round: its row of `rounds.parquet`, and its seconds."""

    def evaluated(self, row: JsonObject) -> None:
        """Show a headline score."""

    def message(self, text: str) -> None:
        """Show a message."""

    def finished(self, summary: JsonObject) -> None:
        """Show the summary."""


@dataclass
class Callbacks:
    """Receivers of a run's events."""

    display: Any
    record: Record
    trackers: list[Tracker] = field(default_factory=list)
    total_bytes: int = 0  # sent in all rounds so far, in both directions
    notes: set[str] = field(default_factory=set)  # those that were reported

    def message(self, text: str) -> None:
        """Report a message, without secrets of URLs."""
        text = mask_secrets(text)
        self.display.message(text)
        self.record.log("message", text=text)

    def note(self, notes: Iterable[str]) -> None:
        """Report notes on the data, each of them once: every worker that encodes a split makes them."""
        for text in notes:
            if text not in self.notes:
                self.notes.add(text)
                self.message(text)

    def chosen(self, phase: int, facts: JsonObject, text: str) -> None:
        """Report the execution mode of a phase and every trial; `text` is its summary in one line, or empty."""
        self.record.log("chosen", phase=phase, **facts)
        if text:
            self.message(text)

    def started(self, plan: JsonObject, startup_seconds: float) -> None:
        """Report that the run starts or resumes."""
        self.total_bytes = self.record.sum("rounds", "total_bytes")
        self.display.started(plan)
        self.record.log("started", **plan, startup_seconds=startup_seconds)

    def evaluated(self, rows: Iterable[JsonObject]) -> None:
        """Report headline scores."""
        for row in rows:
            self.display.evaluated(row)
            self.record.log("evaluated", **row)

    def initial(self, rows: Rows) -> None:
        """Report the scores before the first round."""
        event = TrackingEvent(0, 0, evaluations=tuple(rows["evaluations"]), samples=tuple(rows["samples"]))
        for tracker in self.trackers:
            tracker.log(event)

    def round_done(self, rows: Rows, lap: Lap) -> None:
        """Report a round: its rows, its time by activity, and each worker's memory and GPU utilization."""
        row = {**rows["rounds"][0], "seconds": lap.seconds}
        self.total_bytes += row["total_bytes"]
        gpus = {"use": lap.use} if lap.use else {}
        clocks = {"ended": lap.ended, "timings": lap.timings, "busy": lap.busy, "memory": lap.memory}
        self.record.log("round", **row, **clocks, **gpus)
        event = TrackingEvent(
            row["step"],
            self.total_bytes,
            row,
            lap.timings,
            lap.busy,
            lap.memory,
            lap.use,
            tuple(rows["evaluations"]),
            tuple(rows["samples"]),
            lap.ended,
        )
        for tracker in self.trackers:
            tracker.log(event)
        self.display.round_done(row)

    def finished(self, summary: JsonObject) -> None:
        """Report the end of the run."""
        self.record.log("finished", status=summary["status"])
        self.display.finished(summary)
        evaluations = self.record.rows("evaluations") if self.trackers else []
        for tracker in self.trackers:
            tracker.finish(summary, evaluations)
