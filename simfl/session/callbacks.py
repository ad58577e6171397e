"""Everyone who is told how a run goes: the display, `log.jsonl`, and the trackers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from simfl.runs.record import Record, Rows
from simfl.timing import Lap
from simfl.tracking.events import TrackingEvent
from simfl.tracking.trackers import Tracker


class NullDisplay:
    """The display of a run that shows nothing."""

    def started(self, plan: dict[str, Any]) -> None:
        """The run begins or goes on."""

    def round_done(self, row: dict[str, Any]) -> None:
        """A row of `rounds.parquet`, with seconds."""

    def evaluated(self, row: dict[str, Any]) -> None:
        """A headline score."""

    def message(self, text: str) -> None:
        """Something to be said once."""

    def finished(self, summary: dict[str, Any]) -> None:
        """The summary."""


@dataclass
class Callbacks:
    """Tells all of them."""

    display: Any
    record: Record
    trackers: list[Tracker] = field(default_factory=list)
    bytes: int = 0  # sent in all rounds so far

    def message(self, text: str) -> None:
        """Something to be said once."""
        self.display.message(text)
        self.record.log("message", text=text)

    def chosen(self, phase: int, facts: Mapping[str, Any], text: str) -> None:
        """How a phase is trained, and every execution_mode that was tried; `text` says it in a line, where there was any."""
        self.record.log("chosen", phase=phase, **facts)
        if text:
            self.message(text)

    def started(self, plan: dict[str, Any], startup_seconds: float) -> None:
        """The run begins or goes on."""
        self.bytes = sum(row["total_bytes"] for row in self.record.rows("rounds"))
        self.display.started(plan)
        self.record.log("started", **plan, startup_seconds=startup_seconds)

    def evaluated(self, rows: Iterable[dict[str, Any]]) -> None:
        """Headline scores."""
        for row in rows:
            self.display.evaluated(row)
            self.record.log("evaluated", **row)

    def initial(self, rows: Rows) -> None:
        """The scores before the first round."""
        news = TrackingEvent(0, 0, evaluations=tuple(rows["evaluations"]), samples=tuple(rows["samples"]))
        for tracker in self.trackers:
            tracker.tell(news)

    def round_done(self, rows: Rows, lap: Lap) -> None:
        """A round's rows, where its time went, and what each worker's memory and GPU came to."""
        row = {**rows["rounds"][0], "seconds": lap.seconds}
        self.bytes += row["total_bytes"]
        gpus = {"use": lap.use} if lap.use else {}
        clocks = {"ended": lap.ended, "timings": lap.timings, "busy": lap.busy, "memory": lap.memory}
        self.record.log("round", **row, **clocks, **gpus)
        more = tuple(rows["evaluations"]), tuple(rows["samples"])
        for tracker in self.trackers:
            tracker.tell(TrackingEvent(row["step"], self.bytes, row, lap.timings, lap.busy, lap.memory, lap.use, *more))
        self.display.round_done(row)

    def finished(self, summary: dict[str, Any]) -> None:
        """The summary."""
        self.record.log("finished", status=summary["status"])
        self.display.finished(summary)
        evaluations = self.record.rows("evaluations") if self.trackers else []
        for tracker in self.trackers:
            tracker.end(summary, evaluations)
